"""Sentences of the generated catalogue: patterns with gaps, and the words that fill them.

A search engine is to find in these texts what it finds in real ones: few words that are everywhere, many that are rare, and with
every thousand products some thousand words that were never seen before (names, models, measures, coined materials).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Draw = Callable[[], float]
"""Uniform in [0, 1): the product's own generator. Only sums and products of what it gives are used, and never `log` or `**`, whose
last digit differs from machine to machine."""
Gap = tuple[str, ...] | str | Callable[[Draw], str]
"""What fills a gap: one of these words, what the product calls by this name, or a word made up on the spot."""


class Sentence(NamedTuple):
    """A pattern, ready to be filled."""

    text: str
    """With a %s for every gap."""
    gaps: tuple[Gap, ...]


_GAP = re.compile(r"\{(\w+)\}")
# Two consonants in the middle and one at the end: no short word is the name of a real brand by chance.
_OPENING = tuple(start + vowel for start in "b d f g k l m n p r s t v z".split() for vowel in "a e i o u".split())
_MIDDLE = tuple(
    start + vowel for start in "br zd gr kv pl fn gl sk sm dv tr vr zl lth mb".split() for vowel in "a e i o u".split()
)
_ENDINGS = tuple("n r x l s nt th ck".split())
_BEGINNINGS = tuple(
    _OPENING[place % 70] + _MIDDLE[(place // 70 * 7 + place * 2 + 31) % 75] + _ENDINGS[place // 70 % 8]
    for place in range(8108)
)
_LATER = tuple(
    _OPENING[place % 70] + (_MIDDLE[place * 7 // 70 % 75] if place > 200 else "") + _ENDINGS[place % 8]
    for place in range(300)
)
_RARE = 300_000
_SPREAD = 2048
"""Places of a pool in which the frequent words stand several times: one draw chooses."""


def choose(pool: Sequence[str], draw: Draw) -> str:
    """One of the words, those in front more often."""
    return pool[int(len(pool) * draw() * draw())]


def fill(sentence: Sentence, own: Mapping[str, str], draw: Draw) -> str:
    """The sentence with its gaps filled, and a capital at its beginning; `own` has what this product's parts are called."""
    text = sentence.text % tuple(
        [
            gap[int(_SPREAD * draw())] if type(gap) is tuple else own[gap] if type(gap) is str else gap(draw)  # type: ignore[operator]
            for gap in sentence.gaps
        ]
    )
    return text[0].upper() + text[1:]


@functools.cache
def sentences(name: str, category: str) -> tuple[Sentence, ...]:
    """The patterns of one set of `PATTERNS`, with the words of a category in their gaps."""
    lines = PATTERNS[name].strip().splitlines()
    if name == "plain":
        lines += CATEGORY_PATTERNS[category].strip().splitlines()
    return tuple(_compile(line, category) for line in lines)


@functools.cache
def words(name: str, category: str) -> tuple[str, ...]:
    """One list: of a category's own words where it has such a list, of all categories' otherwise."""
    text = CATEGORY_WORDS[category].get(name) or WORDS[name]
    return tuple(" ".join(word.split()) for word in text.split(","))


def _compile(pattern: str, category: str) -> Sentence:
    return Sentence(
        _GAP.sub("%s", pattern.replace("%", "%%")), tuple(_gap(name, category) for name in _GAP.findall(pattern))
    )


@functools.cache
def _gap(name: str, category: str) -> Gap:
    made = {"coined": _coined, "made": made_up, "code": _code, "small": _small, "measure": _measure}
    if name in made:
        return made[name]
    return name if name in OWN else _spread(words(name, category))


def _spread(pool: tuple[str, ...]) -> tuple[str, ...]:
    """The word at `x` of the way through the pool stands there in proportion to 1 / (x + 0.2): a tail as texts have it."""
    weights = [
        1_000_000 * len(pool) // (5 * place + len(pool)) for place in range(len(pool))
    ]  # whole numbers: no rounding
    found: list[str] = []
    for place, word in enumerate(pool):
        found += [word] * (_SPREAD * sum(weights[: place + 1]) // sum(weights) - len(found))
    return tuple(found)


def made_up(draw: Draw) -> str:
    """A word that no dictionary has. A few are frequent, as brands are, and there is no end of rare ones."""
    number = int(_RARE * draw() * draw() * draw() * draw() * draw())
    beginning = _BEGINNINGS[number * 8 % 8100 + int(8 * draw())]  # eight words where the same number is drawn again
    if number < 1000:
        return beginning
    return beginning + _LATER[number // 1000]


def _coined(draw: Draw) -> str:
    return choose(_FIRST_HALVES, draw) + choose(_SECOND_HALVES, draw)


def _code(draw: Draw) -> str:
    first, second = _LETTERS[int(24 * draw())], _LETTERS[int(24 * draw())]
    return f"{first}{second}{int(10 + 990 * draw() * draw())}{_LETTERS[int(24 * draw())] if draw() < 0.4 else ''}"


def _small(draw: Draw) -> str:
    return str(2 + int(11 * draw() * draw()))


def _measure(draw: Draw) -> str:
    number = int(20 + 600 * draw() * draw())
    return str(number / 10) if draw() < 0.6 else str(number // 10)


OWN = ("brand", "noun", "phrase", "main")
"""Gaps that every product fills with its own: `phrase` is what an attribute is called in a sentence, `main` its main material."""

PATTERNS: Mapping[str, str] = {
    "is": """
The {noun} is {phrase}, so {benefit}
Being {phrase} it {does} your {thing} {how}
It is {phrase} and {adjective}, and {benefit}
{people} wanted it {phrase}, and so it is, from the {part} to the {part}
Simply {phrase}: {benefit}
What is {phrase} {does} {how}, and {benefit}
Our {adjective} {part} is {phrase} and {does} the {thing}
{phrase}, {adjective} and {adjective}
Hardly anything {phrase} {does} a {thing} {how}
Yes, {phrase}! Even {people} at {occasion} agree
{phrase} by nature: {coined} {material}, {adjective} {part}
""",
    "with": """
The {noun} comes with {phrase}, so {benefit}
With {phrase} and a {adjective} {part} it {does} your {thing} {how}
We chose {phrase} because {benefit}
Look for {phrase}: {people} know that it {does} {how}
With {phrase}, {coined} {material} and a {part} that {does} the {thing}
{phrase} beside {adjective} {material}: {benefit}
{phrase} meets {material}, {adjective} as {season}
Thanks to {phrase}, {people} {do} {how}
Built around {phrase} and the {coined} {part}
""",
    "for": """
Made for {phrase}, where it {does} the {thing} {how}
A {adjective} choice for {phrase}, and for {occasion} too
{people} use it for {phrase}, {occasion} and {occasion}
For {phrase} you want a {adjective} {noun}: {benefit}
Tested for {phrase} by {people} in {made}
{phrase}? {people} pick this {noun}, {how}
Suits {phrase}; {does} the {thing} at {occasion}
""",
    "plain": """
The {adjective} {part} of {coined} {main} {does} the {thing} {how}
{benefit}, and the {part} {does} {how}
A {adjective} {part} and a {adjective} {part} in one {noun}
{people} like the {adjective} {main}, {people} the {made} {part}
It {does} your {thing} and {does} the {adjective} {thing}, {how}
Goes with your {thing}, your {coined} {material} and anything {adjective}
From {occasion} to {occasion}: {benefit}
Size: {measure} x {measure} x {measure} inches, weight {measure} ounces
Each {part} is {measure} cm wide and {measure} cm long, measured by hand
The pack holds {small} pieces, a {adjective} {part} and a card that shows how to begin
{coined} {material} keeps its {adjective} look after {small} seasons
A gift for {people} or {people}, for {occasion} or {occasion}
Keep it away from {thing} and {thing}, and it {does} {how}
The {made} finish is {adjective}, the {part} {adjective}
Rinse, wipe or brush the {part}, then leave it to dry
{small} layers of {main} and {material}, glued with {coined}
No {made}, no {made}, no {made}
{material}, {material}, {material}, {made} and {made}
Comes in a box of {measure} cm by {measure} cm, {adjective} enough for {occasion}
New: {adjective} {part}, {adjective} {part}, same {main}
The {part} turns, the {part} stays, and nothing {does} the {thing} like it
{adjective}, {adjective}, {adjective}: three reasons why {people} return
Store upright, far from heat, under {measure} degrees
Patented {coined} {part} for a {adjective} {thing}
{does} the {thing}, {does} the {thing}, {does} the {thing}
Certified under {code}, inspected twice a year
Ideal present: {occasion}, {occasion}, {occasion}
Replaces {code}, {code} and {code}
Warranty of {small} months on the {part}; the {main} is excluded
{people} rate the {part} above the {coined} {part}
Approximately {measure} grams, {measure} mm thick, tolerance {small} percent
Unlike {made} {material}, {coined} {material} {does} {how}
Suitable to {do}, to {do} or to {do} {how}
Wholly without {made}; contains {main} and traces of {material}
Ships folded, with {small} screws or clips where required
If it is not {adjective} enough for your {coined} {thing} within {small} weeks, write to us and we find a way
""",
    "detail": """
Model {code}
{measure} x {measure} Inches
{small} Pack, {coined}
{made} {main}, {code}
""",
    "story": """
{brand} began in {made} when {people} looked for a {adjective} {noun} and found none
At {brand} every {noun} passes {small} pairs of hands before it leaves the house
Think of {occasion}, of your {adjective} {thing}, of {people} who {do} and {do} what they like
The {noun} on this page is the {code}; the {code} has another {part}
Whoever bought the {made} {noun} will find the {part} more {adjective} and the {material} {adjective}
We make it of {main} and {material}, {how}, in the colours of {season}
This {noun} {does} what {made} and {made} only promise: {benefit}
Please measure your {thing} before you order, as the {part} may differ by {small} mm
Screens show colours in their own way, so the {part} may look a little more {adjective}
In the box: the {noun}, {small} spare pieces, a {adjective} {part} of {made} {material} and a guide by {people}
Not only {adjective} but {adjective}: the {coined} {part} {does} the {thing} {how}, as {made} does not
Questions about the {part}, the {material} or the {code}? {brand} answers within {small} days
Old workshops in {made} knew that {material} {does} a {adjective} {part}; {brand} learned it there
Hello from {brand}! Our {noun} won the {made} award for its {adjective} {part}
Specification: {code}; {measure} by {measure} by {measure} cm; {material}, {material}; {small} parts
Step one, open the {part}. Step two, {do}. Step three, enjoy {occasion}
Between {occasion} and {occasion} life gets loud, and a {adjective} {noun} {does} the {thing}
Designer {made} {made} calls it "a {adjective} answer to {season}"
Caution: small parts, not meant for children under {small}, nor for {occasion}
A portion of each sale goes to {people} around {made}
Every batch carries a number such as {code}, printed beneath the {part}
Compare the {adjective} {part} with any {made}: ours {does} the {thing} {how}
Reviewers mention the {part}, the {material}, the {adjective} {material} and, again, the {part}
Forget {adjective} promises. Here stands a {noun} that {does} your {thing}
Since {season} we have grown, but the {coined} {material} remains {adjective}
Mix the {made} with the {coined}, the {adjective} with the {adjective}, {season} with {season}
Recommended by {people}, feared by dust, loved around {occasion}
Limited edition named after {made}, a village of {people}
Whether you {do}, {do} or {do}, let the {part} carry the load
There is a {adjective} {part} for {occasion}, and a {adjective} one for {occasion}
Inspired by {season} in {made}, drawn by {made} {made}, and {adjective} {how}
""",
}

CATEGORY_PATTERNS: Mapping[str, str] = {
    "beauty": """
Apply a {adjective} amount, massage {small} minutes, rinse with lukewarm water
Patch test first; stop where redness or itching appears
Ingredients: aqua, {made}ol, {made}ate, {material}, {made}ine, parfum
Dermatologists at {made} tried the {part} on {measure} volunteers
Massage into damp {thing} until it {does} the {thing}
A drop of {material}, a hint of {material}, never greasy
""",
    "electronics": """
Compatible with {code}, {code}, {code} and most {made} models
Bandwidth up to {measure} gigabits, latency below {small} milliseconds
Input 100 to 240 volts, output {measure} watts, certified {code}
Firmware {small}.{small} adds {adjective} profiles for {thing} and {thing}
Plug in, pair, done: the {part} blinks {small} times
Rated for {measure} thousand cycles under load
""",
    "garden": """
Assembly takes {small} people and about {measure} minutes; hardware supplied
Supports up to {measure} kilograms when fixed to studs or beams
Tones of {season} match {coined} interiors, farmhouse lofts and studios
Felt pads under each {part} spare your floor
Wipe with a dry cloth; avoid bleach, direct sun and steam
Overall height {measure}, depth {measure}, clearance {measure} inches
""",
    "fashion": """
Model wears medium, stands {measure} hands tall, and ordered her usual size
Size chart: bust {measure}, waist {measure}, hip {measure}, length {measure}
Pair it with {material} trousers, a {adjective} jacket or bare {thing}
Composition: {measure} percent {material}, {measure} percent {material}
Iron inside out on low, hang to dry, never bleach
Cut a little {adjective}; choose one up between sizes
""",
    "grocery": """
Serving suggestion: {measure} grams with {material}, {material} or {made} cheese
Calories {measure}, carbohydrates {measure}, protein {small} per portion
Ingredients: {material}, {material}, {made} {material}, natural flavor
Roasted, milled, sealed near {made} in small lots
Best before the date stamped underneath; refrigerate once opened
May contain {material} or {material}; packed beside nuts
""",
}
"""Category → more patterns of the set `plain`."""

_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
_FIRST_HALVES = tuple(
    """soft cloud pure sun stone dream leaf fresh wind moon silk glow star moss snow wave bloom ember field river dawn cedar frost honey
    lark quill velvet meadow amber brook petal north hush feather pine coral haven spark mist willow fern hazel drift shell dusk harbor
    clover linen swift ridge maple thistle breeze cove lumen orchard pebble raven saffron tidal umber vale wren zephyr cinder dew""".split()
)
_SECOND_HALVES = tuple(
    """weave touch grip guard flow light core fold rest fit line lock step shield blend wrap lift mesh stitch tone bond ease form band
    crest craft frame glide guard hold knit loom mark nest plait point press ring rise root seal shade shift skin span spin stay stream
    thread trace twist vent ward wick wing wood works yarn zone""".split()
)

WORDS: Mapping[str, str] = {
    "adjective": """soft, perfect, beautiful, modern, simple, comfortable, strong, classic, smooth, warm, elegant, durable, bright, light, natural,
        fine, clean, stylish, sturdy, handy, fresh, gentle, cozy, sleek, safe, practical, compact, rich, delicate, quiet, solid, thoughtful,
        flexible, lovely, generous, roomy, timeless, tidy, clever, cheerful, slim, thick, festive, rustic, smart, even, subtle, vivid,
        reliable, graceful, dense, sleepy, bold, honest, tender, calm, wide, crisp, airy, minimal, polished, sheer, playful, deep,
        snug, dainty, mellow, robust, plush, velvety, supple, glossy, tapered, woven, weightless, moody, radiant, nimble, humble,
        sunny, silky, spotless, steady, seamless, hearty, lasting, tactile, tranquil, unfussy, versatile, whimsical, zesty, lush,
        springy, serene, refined, quilted, pleasant, ornate, muted, lofty, jaunty, iconic, hushed, earthy, dapper, chunky, brisk""",
    "does": """keeps, protects, holds, supports, brightens, cares for, covers, carries, softens, fits, lifts, completes, cleans, warms, follows,
        restores, guards, shapes, refreshes, surrounds, smooths, organizes, cushions, frames, calms, matches, cools, secures, balances,
        revives, steadies, hugs, saves, improves, seals, dresses, tames, lights, shelters, frees, stores, polishes, accents, rescues,
        transforms, welcomes, sharpens, enriches, simplifies, quiets, spoils, lines, sorts, anchors, nourishes, wraps, tidies, wakes""",
    "do": "make, do, cook, draw, wear, play, read, build, try, share, sing, plant, mend, paint, collect, film, bake, write, sew, grow",
    "how": """every day, with ease, for years, in seconds, without a trace, day and night, all year round, gently, at home and away, in no time,
        from the first day, with little effort, as it should, evenly, without noise, more than before, in any weather, at a glance,
        safely, to the last, for hours, quietly, with care, step by step, on the go, reliably, without tools, twice as long, firmly,
        softly, in one move, from edge to edge, again and again, beautifully, week after week, even on mondays, neatly, patiently""",
    "benefit": """you save time every morning, it looks good in every corner, nothing slips or slides, your hands stay free, there is no mess,
        it lasts for years, it feels right from the first touch, even beginners manage, the whole family can share it, cleaning takes
        a minute, it fits where others do not, you never go without, guests will ask where it is from, it stays where you put it,
        it goes wherever you go, no corner is left out, nothing rattles or creaks, you can give it away with pride, it keeps its shape,
        small hands can hold it too, you need no other, there is room for more, mornings begin better, it works the moment it arrives,
        the color stays true, it ages well, no tool is needed, waste is kept low, you notice the difference, every cent is well spent,
        evenings grow longer, it never gets in the way, repairs are a thing of the past, the scent does not linger, dust has no chance,
        you forget that it is there, returns are rare, neighbors grow curious, sleep comes sooner, the weather hardly matters""",
    "occasion": """home, work, travel, birthdays, christmas, weddings, school, parties, holidays, the office, camping, a day at the beach, picnics,
        mother's day, the gym, hiking, long drives, housewarmings, graduation, rainy days, movie nights, halloween, anniversaries, brunch,
        the garden, father's day, easter, sleepovers, date nights, a road trip, thanksgiving, concerts, baby showers, fishing trips,
        the first day of school, reunions, market days, festivals, business trips, yoga, late shifts, snow days, study evenings""",
    "people": """women, men, kids, friends, families, our customers, students, beginners, professionals, parents, teachers, travelers, grandparents,
        neighbors, designers, athletes, teens, nurses, gardeners, artists, cooks, commuters, dancers, collectors, carpenters, musicians,
        photographers, night owls, early birds, newlyweds, campers, stylists, toddlers, readers, runners, sailors, barbers, florists,
        engineers, chemists, weavers, roommates, minimalists, pilots, painters, bakers, tailors, librarians, surfers, climbers""",
    "season": """spring, summer, autumn, winter, early morning, late september, the coast, old films, the desert, the north, a blue hour,
        market stalls, first snow, an orchard, the harbor, wild meadows, tall grass, quiet streets, river stones, a july evening""",
}
"""Words of all categories, the frequent ones first."""

CATEGORY_WORDS: Mapping[str, Mapping[str, str]] = {
    "beauty": {
        "thing": """skin, hair, face, lips, hands, scalp, nails, bag, routine, smile, roots, complexion, body, shower, mirror, brows, towel, vanity,
            pores, cheeks, lashes, heels, elbows, bathroom shelf, suitcase, neck, gums, curls, temples, fingertips""",
        "part": """formula, texture, bottle, scent, cap, pump, handle, tube, lather, blend, finish, pouch, jar, tip, bristle, dropper, label, shade,
            lid, comb, nozzle, sleeve, case, applicator, sponge, seal, refill, spatula, core""",
        "material": """oil, extract, butter, water, cream, clay, wax, gel, protein, silk, bamboo, charcoal, balm, seed oil, foam, mineral powder,
            cotton, milk, sea salt, blossom water, resin, oat, rosehip, sugar, algae, pearl powder, chamomile, ceramide, calendula""",
    },
    "electronics": {
        "thing": """phone, tv, desk, laptop, camera, pocket, music, screen, tablet, backpack, car, games, calls, data, photos, battery, office, room,
            cables, console, films, workouts, commute, podcasts, documents, drone, router, wrist, playlist, studio""",
        "part": """cable, port, button, case, screen, speaker, connector, battery, plug, cover, sensor, lens, strap, hinge, chip, stand, microphone,
            housing, adapter, edge, switch, bracket, dial, antenna, fan, light, hook, latch, joint, grille""",
        "material": """aluminum, plastic, rubber, nylon, copper, glass, steel, silicone, leather, alloy, fabric, polycarbonate, foam, magnet, zinc,
            carbon, canvas, brass, microfiber, graphite, ceramic, neodymium, titanium, vinyl, resin, acrylic, cork, walnut""",
    },
    "garden": {
        "thing": """room, home, wall, living room, bed, floor, corner, hallway, books, sofa, kitchen, window, plants, balcony, shelf, keys, blankets,
            guests, entry, nursery, studio, evening, attic, laundry, toys, coffee, art, terrace, cabin, dining table""",
        "part": """frame, leg, top, cover, shade, base, shelf, seat, back, drawer, edge, fabric, foot, panel, arm, hook, rail, cushion, seam, corner,
            knob, slat, hem, border, weave, bulb, tray, lining, hinge, bracket, caster, tassel""",
        "material": """wood, metal, cotton, steel, linen, glass, velvet, oak, pine, foam, rattan, polyester, iron, marble, walnut, jute, bamboo, brass,
            leather, wool, ceramic, acacia, mango wood, concrete, wicker, canvas, chenille, birch, ash, felt, rope, cane""",
    },
    "fashion": {
        "thing": """jeans, outfit, wardrobe, feet, shoulders, waist, jacket, day, coat, skirt, steps, evening look, bag, boots, weekend, shirt, suitcase,
            sleeves, ankles, silhouette, work clothes, blazer, scarf, belt, dress, necklace, leggings, arches, hat, drawer""",
        "part": """fabric, seam, collar, sleeve, waistband, pocket, sole, hem, lining, cuff, button, zipper, strap, neckline, toe, heel, hood, insole,
            stitch, buckle, drawstring, print, panel, placket, elastic, yoke, pleat, loop, tongue, label, shaft""",
        "material": """cotton, polyester, spandex, rayon, wool, denim, leather, fleece, nylon, linen, suede, viscose, mesh, knit, acrylic, rubber, chiffon,
            lace, canvas, jersey, satin, modal, corduroy, cashmere, twill, velvet, lycra, flannel, tulle, bamboo, tencel""",
    },
    "grocery": {
        "thing": """breakfast, snack, pantry, lunch, kitchen, table, cup, dessert, salad, dinner, lunch box, guests, recipe, morning, bowl, sweet tooth,
            coffee break, plate, soup, basket, party, smoothie, bread, grill, picnic, afternoon, oatmeal, oven, cheese board, thirst""",
        "part": """flavor, bag, taste, aroma, pack, recipe, bite, crunch, blend, texture, jar, box, pouch, roast, spice, crumb, seal, tin, sweetness,
            crust, finish, portion, filling, peel, topping, harvest, leaf, bean, kernel, brew""",
        "material": """sugar, salt, cocoa, oats, honey, butter, fruit, almonds, pepper, milk, garlic, rice, wheat, coconut, lemon, vanilla, corn, cinnamon,
            ginger, maple syrup, olive oil, cashews, sesame, barley, dates, mint, onion, paprika, rosemary, cranberries, rye, turmeric""",
    },
}
"""Category → list → its own words."""
