"""Model folders: loading, saving, the built-in policy."""

MESSAGES = (
    "{% if tools %}{{ '<|im_start|>tools\\n' }}{% for tool in tools %}{{ tool['function']['name'] + '\\n' }}{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ '<tool_call>{\"name\": ' + call['function']['name'] | tojson }}"
    "{{ ', \"arguments\": ' + call['function']['arguments'] | tojson + '}</tool_call>' }}"
    "{% endfor %}"
    "{{ '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Chat template of the built-in model with words."""
ACTIONS = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<act> ' + message['content'] + ' <obs> ' }}"
    "{% else %}{{ message['content'] + ' ' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<act> ' }}{% endif %}"
)
"""Of the built-in model with entities."""
