"""Model folders: loading, saving, the built-in policy."""

MESSAGES = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
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
