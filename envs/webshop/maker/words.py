"""What the generated catalogue talks about: kinds of products, what is said of them, and what there is to choose.

All of it is written for this package; no brand and no line of a real catalogue is in it. In every list the words that are to be
frequent stand first: `maker.py` draws from the front more often than from the end.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of product: those of one kind compete for the same goals."""

    category: str
    path: str
    """The official `product_category`: parts separated by ›."""
    query: str
    nouns: tuple[str, ...]
    """What titles call it; all have a word of `query` or its synonym."""
    attributes: tuple[str, ...]
    """Groups of `ATTRIBUTES`."""
    options: str
    """A row of `CHOICES`."""
    prices: tuple[int, int]
    """US dollars, lowest and highest."""


class Attribute(NamedTuple):
    """Something that a product is, has or is meant for."""

    name: str
    """As `items_ins_v2.json` and the instruction have it: two or three words."""
    role: str
    """`is`, `with` or `for`: its place in an instruction."""
    phrase: str
    """As sentences say it."""


@functools.cache
def kinds() -> tuple[Kind, ...]:
    """All kinds; every one of them is as likely as another."""
    return tuple(
        Kind(category, path, query, _listed(nouns), tuple(groups.split()), options, _ends(prices))
        for category, rows in KINDS.items()
        for path, query, nouns, groups, options, prices in (
            (cell.strip() for cell in row.split("|")) for row in rows.strip().splitlines()
        )
    )


@functools.cache
def attributes(group: str) -> tuple[Attribute, ...]:
    """One group of `ATTRIBUTES`. A name that sentences say in other words has these after an equals sign."""
    found = []
    for role, row in zip(("is", "with", "for"), ATTRIBUTES[group].strip().split("/"), strict=True):
        for entry in _listed(row):
            name, _, phrase = entry.partition(" = ")
            found.append(Attribute(name, role, phrase or name))
    return tuple(found)


@functools.cache
def values(row: str) -> tuple[str, ...]:
    """One row of `VALUES`."""
    return _listed(VALUES[row])


def _listed(text: str) -> tuple[str, ...]:
    """What stands between commas; lines may break anywhere."""
    return tuple(entry for each in text.split(",") if (entry := " ".join(each.split())))


def _ends(prices: str) -> tuple[int, int]:
    low, high = prices.split()
    return int(low), int(high)


KINDS: Mapping[str, str] = {
    "beauty": """
Beauty › Hair › Washing › Shampoos | shampoos | shampoo, hair wash, shampoo bar | hair skin0 use0 | scent | 6 42
Beauty › Hair › Washing › Conditioners | conditioners | conditioner, leave in conditioner | hair skin0 | scent | 6 46
Beauty › Hair › Masks | hair masks | hair mask, repair mask for hair, hair pack | hair skin0 | volume | 7 52
Beauty › Hair › Tools › Brushes | hair brushes | hair brush, paddle brush, detangling brush | brush use0 | tone | 5 34
Beauty › Hair › Colouring | hair dyes | hair dye, hair colour, root touch up dye | dye skin0 | tone | 5 30
Beauty › Hair › Wigs | wigs | wig, lace front wig, short bob wig | wig use0 | tone | 18 190
Beauty › Skin › Face › Serums | face serums | face serum, serum, night serum for face | skin skin0 oils | volume | 8 88
Beauty › Skin › Face › Creams | face creams | face cream, day cream, moisturizer | skin skin0 oils | volume | 7 92
Beauty › Skin › Sun Care | sunscreens | sunscreen, sun cream, sun lotion stick | sun skin0 | volume | 7 48
Beauty › Skin › Body › Lotions | body lotions | body lotion, body milk, body butter | skin skin0 oils | scent | 6 44
Beauty › Skin › Body › Scrubs | body scrubs | body scrub, sugar scrub, salt scrub | skin skin0 oils | scent | 7 40
Beauty › Bath › Soaps | bath soaps | bar soap, bath soap, hand soap | oils skin0 | scent | 4 32
Beauty › Makeup › Lips › Balms | lip balms | lip balm, tinted lip balm, lip butter | lips skin0 oils | scent | 3 24
Beauty › Makeup › Lips › Lipsticks | lipsticks | lipstick, matte lipstick, lip stain | lips skin0 | tone | 5 38
Beauty › Makeup › Eyes › Palettes | eyeshadow palettes | eyeshadow palette, eye shadow kit | eyes skin0 | tone | 8 60
Beauty › Makeup › Tools › Brushes | makeup brushes | makeup brush set, powder brush, kabuki brush | brush eyes use0 | tone | 6 58
Beauty › Nails › Polish | nail polishes | nail polish, gel nail polish, nail lacquer | nails skin0 | tone | 4 26
Beauty › Fragrance › Perfumes | perfumes | perfume, eau de parfum, perfume oil | scents skin0 | scent | 12 140
Beauty › Mouth › Toothpastes | toothpastes | toothpaste, tooth gel, whitening toothpaste | mouth skin1 | scent | 4 28
Beauty › Mouth › Toothbrushes | toothbrushes | toothbrush, electric toothbrush, kids toothbrush | mouth use0 | plain | 4 96
Beauty › Mouth › Tongue Cleaners | tongue cleaners | tongue cleaner, tongue scraper | mouth use0 steel | plain | 4 22
Beauty › Shaving › Razors | razors | razor, safety razor, razor set for shaving | shave use0 steel | plain | 6 74
Beauty › Bags › Cosmetic Bags | cosmetic bags | cosmetic bag, makeup pouch, toiletry bag | bags use0 | pattern | 7 46
Beauty › Bags › Travel Bottles | travel bottles | travel bottle set, refillable bottle, spray bottle | bottles use0 | volume | 4 29
""",
    "electronics": """
Electronics › Cables › HDMI | hdmi cables | hdmi cable, braided hdmi cable, hdmi cord | cable use1 video | length | 5 64
Electronics › Cables › Power | power cords | power cord, ac power cord, power cable | cable use1 power | length | 5 38
Electronics › Power › Chargers | chargers | charger, wall charger, charging station | power use1 | plug | 8 72
Electronics › Audio › Headphones | headphones | headphones, over ear headphones, headset | audio use1 | plain | 14 260
Electronics › Audio › Earbuds | earbuds | earbuds, wireless earbuds, in ear earbuds | audio use1 sport | plain | 12 180
Electronics › Audio › Speakers › Portable | bluetooth speakers | bluetooth speaker, portable speaker | audio use1 sport | plain | 15 220
Electronics › Audio › Speakers › Soundbars | soundbars | soundbar, sound bar with subwoofer | audio theater | plain | 39 420
Electronics › Audio › Radios | radios | radio, alarm clock radio, hand crank radio | audio power | plain | 15 130
Electronics › Video › Projectors | projectors | projector, mini projector, video projector | video theater | gear | 49 780
Electronics › Video › Projector Screens | projector screens | projector screen, projection screen | theater use1 | inches | 25 290
Electronics › Video › Mounts | tv mounts | tv mount, tv wall mount, tv bracket | mounts steel use1 | inches | 15 160
Electronics › Video › Remote Controls | remote controls | remote control, replacement remote | remote use1 | gear | 6 40
Electronics › Computers › Tablets | tablets | tablet, android tablet, drawing tablet | screen video | memory | 59 640
Electronics › Computers › Keyboards | keyboards | keyboard, mechanical keyboard, wireless keyboard | keys use1 | gear | 14 170
Electronics › Computers › Memory Cards | memory cards | memory card, micro memory card | memory use1 | memory | 7 120
Electronics › Computers › Tablet Cases | tablet cases | tablet case, folio case for tablet, tablet sleeve | cases use1 | pattern | 9 58
Electronics › Phones › Cases | phone cases | phone case, wallet phone case, clear phone case | cases use1 | pattern | 6 44
Electronics › Phones › Screen Protectors | screen protectors | screen protector, glass screen protector | glass use1 | gear | 5 30
Electronics › Wearables › Smart Watches | smart watches | smart watch, fitness watch, watch tracker | screen sport | plain | 24 340
Electronics › Wearables › Bands | watch bands | watch band, watch strap, bracelet band for watch | bands sport | pattern | 6 48
Electronics › Photo › Tripods | tripods | tripod, camera tripod, tripod stand | photo use1 | gear | 15 210
Electronics › Photo › Lenses | camera lenses | camera lens, wide angle lens, zoom lens | photo glass | gear | 29 890
Electronics › Photo › Bags | camera bags | camera bag, camera backpack, shoulder bag for camera | photo bags | plain | 16 140
Electronics › Photo › Binoculars | binoculars | binoculars, compact binoculars, bird watching binoculars | photo use1 | gear | 19 360
""",
    "garden": """
Home › Lighting › Floor Lamps | floor lamps | floor lamp, standing lamp, arc floor lamp | light room steel | finish | 29 320
Home › Lighting › Table Lamps | table lamps | table lamp, bedside lamp, desk lamp | light room | finish | 18 190
Home › Lighting › Wall Lights | wall lights | wall light, wall sconce, vanity light | light mounted room | finish | 22 260
Home › Furniture › Tables › Console Tables | console tables | console table, sofa table, entry table | wood room store | finish | 69 640
Home › Furniture › Tables › Coffee Tables | coffee tables | coffee table, cocktail table, lift top coffee table | wood room store | finish | 59 720
Home › Furniture › Tables › Desks | desks | desk, writing desk, standing desk | wood office store | finish | 79 820
Home › Furniture › Seats › Office Chairs | office chairs | office chair, desk chair, task chair | seat office | finish | 69 560
Home › Furniture › Seats › Bar Stools | bar stools | bar stool, counter stool, swivel bar stool | seat steel room | finish | 45 390
Home › Furniture › Seats › Ottomans | ottomans | ottoman, storage ottoman, foot stool | seat store room | finish | 29 240
Home › Furniture › Seats › Sofas | sofas | sofa, loveseat, sectional sofa | seat wood room | finish | 199 1890
Home › Furniture › Storage › Bookcases | bookcases | bookcase, bookshelf, ladder bookcase | wood store office | finish | 39 480
Home › Furniture › Bedroom › Bed Frames | bed frames | bed frame, platform bed, upholstered bed | bed wood store | bed | 99 980
Home › Bedding › Mattresses | mattresses | mattress, foam mattress, spring mattress | bed foam | bed | 119 1290
Home › Bedding › Pillows | pillows | pillow, throw pillow, bed pillow | foam wash room | inches | 9 80
Home › Bedding › Blankets | throw blankets | throw blanket, blanket, fleece blanket | wash cosy room | inches | 14 120
Home › Windows › Curtains | curtains | curtains, blackout curtain panels, window curtains | wash curtain room | inches | 14 140
Home › Floors › Rugs | rugs | rug, area rug, runner rug | rug wash room | inches | 19 460
Home › Bath › Shower Curtains | shower curtains | shower curtain, bath curtain with hooks | wash curtain bath | inches | 11 60
Home › Walls › Mirrors | wall mirrors | wall mirror, round mirror, vanity mirror | mounted room glass0 | finish | 24 380
Home › Walls › Art | wall art | wall art, canvas wall art, framed art print | mounted room art | inches | 12 220
Home › Decor › Candles | candles | candle, scented candle, soy candle | candle room | scent | 7 58
Home › Storage › Baskets | storage baskets | storage basket, woven basket, laundry basket | store wash room | finish | 11 84
""",
    "fashion": """
Clothing › Men › Tops › T-Shirts | men's t-shirts | men's t-shirt, crew neck tee for men, graphic tee | cloth top0 wear | wear | 8 44
Clothing › Men › Tops › Hoodies | men's hoodies | men's hoodie, pullover hoodie, zip hoodie for men | cloth top1 wear | wear | 17 86
Clothing › Men › Tops › Sweaters | men's sweaters | men's sweater, knit sweater, half zip sweater | cloth top1 knit | wear | 19 110
Clothing › Men › Tops › Shirts | men's shirts | men's shirt, button down shirt, dress shirt | cloth top0 wear | wear | 14 78
Clothing › Men › Bottoms › Shorts | men's shorts | men's shorts, cargo shorts, swim shorts for men | cloth bottom sport | wear | 12 64
Clothing › Men › Bottoms › Jeans | men's jeans | men's jeans, straight leg jeans, denim pants | cloth bottom wear | wear | 22 128
Clothing › Men › Shoes › Sneakers | men's sneakers | men's sneakers, running shoes, walking shoes for men | shoe sport | shoe | 24 160
Clothing › Men › Shoes › Loafers | men's loafers | men's loafers, slip on loafers, driving shoes | shoe wear | shoe | 26 180
Clothing › Women › Dresses | women's dresses | women's dress, maxi dress, wrap dress, sun dress | cloth dress wear | wear | 15 140
Clothing › Women › Tops › Blouses | women's blouses | women's blouse, tunic top, blouse | cloth top0 dress | wear | 12 74
Clothing › Women › Tops › Cardigans | women's cardigans | women's cardigan, open front cardigan | cloth top1 knit | wear | 18 98
Clothing › Women › Bottoms › Leggings | women's leggings | women's leggings, yoga pants, high waist leggings | cloth bottom sport | wear | 11 88
Clothing › Women › Bottoms › Skirts | women's skirts | women's skirt, pleated skirt, midi skirt | cloth bottom dress | wear | 13 92
Clothing › Women › Swimwear | women's swimsuits | women's swimsuit, one piece swimsuit, bikini set | swim dress | wear | 16 96
Clothing › Women › Sleepwear | women's pajamas | women's pajamas, pajama set, sleep shirt | cloth cosy0 wear | wear | 16 84
Clothing › Women › Socks | women's socks | women's socks, ankle socks, knee high socks | cloth knit sport | wear | 6 36
Clothing › Women › Shoes › Sandals | women's sandals | women's sandals, wedge sandals, slide sandals | shoe dress | shoe | 14 120
Clothing › Women › Shoes › Boots | women's boots | women's boots, ankle boots, winter boots | shoe cosy0 | shoe | 29 210
Clothing › Women › Shoes › Pumps | women's pumps | women's pumps, block heel pumps, pointed toe heels | shoe dress | shoe | 24 160
Clothing › Women › Shoes › Slippers | women's slippers | women's slippers, house slippers, slipper clogs | shoe cosy0 | shoe | 11 68
""",
    "grocery": """
Food › Drinks › Tea | teas | tea, herbal tea, loose leaf tea, tea bags | drink diet | flavor | 5 46
Food › Drinks › Coffee | coffee | coffee, ground coffee, coffee beans, coffee pods | drink diet | flavor | 7 64
Food › Drinks › Sparkling Water | sparkling water | sparkling water, flavored sparkling water | drink diet | flavor | 6 40
Food › Sweets › Chocolate | chocolate bars | chocolate bar, dark chocolate bar, milk chocolate | sweet diet gift | flavor | 4 48
Food › Sweets › Cookies | cookies | cookies, butter cookies, oat cookies | sweet diet gift | flavor | 4 42
Food › Snacks › Chips | potato chips | potato chips, kettle chips, ridged chips | snack diet | flavor | 3 38
Food › Snacks › Dried Fruit | dried fruit | dried fruit, dried mango slices, dried apple rings | snack diet | pack | 6 52
Food › Snacks › Nuts | nuts | mixed nuts, roasted almonds, nuts | snack diet gift | pack | 7 66
Food › Snacks › Jerky | jerky | beef jerky, turkey jerky, jerky strips | meat snack | flavor | 6 58
Food › Breakfast › Granola | granola | granola, granola clusters, oat granola | snack diet | flavor | 5 40
Food › Pantry › Pasta | pasta | pasta, egg noodles, whole wheat pasta | pantry diet | pack | 3 36
Food › Pantry › Sauces | sauces | pasta sauce, hot sauce, simmer sauce, sauce | pantry diet | flavor | 4 44
""",
}
"""Category → rows of path | query | nouns | groups of attributes | options | prices."""

ATTRIBUTES: Mapping[str, str] = {
    "use0": """easy use = easy to use, easy clean = easy to clean, easy carry = easy to carry, high quality, long lasting,
        non slip, eco friendly, light weight / storage case = a storage case / travel use, professional use, home use""",
    "use1": """easy install = easy to install, easy use = easy to use, high quality, heavy duty, plug play = plug and play,
        easy carry = easy to carry, light weight / carrying case = a carrying case / home office = the home office, gift giving""",
    "skin0": """cruelty free, paraben free, fragrance free, dermatologist tested, non toxic, alcohol free / natural ingredients
        /""",
    "skin1": "cruelty free, gluten free, non toxic, alcohol free / natural ingredients, essential oils /",
    "skin": """anti aging, oil free, fast absorbing, clinically proven / hyaluronic acid, vitamin c, green tea, aloe vera /
        dry skin, sensitive skin, fine lines, dark spots, dead skin, oily skin""",
    "oils": "certified organic, plant based / shea butter, coconut oil, tea tree = tea tree oil, jojoba oil, essential oils /",
    "hair": """sulfate free, color safe, deep cleansing / argan oil, coconut oil, rice water, tea tree = tea tree oil /
        dry hair, damaged hair, curly hair, hair growth, fine hair, itchy scalp""",
    "brush": """hand made, double sided, travel size / natural bristles, wooden handle = a wooden handle, soft bristles / thick
        hair""",
    "dye": "ammonia free, easy apply = easy to apply, semi permanent / plant extracts / gray hair, dark hair, sensitive scalp",
    "wig": "heat resistant, natural looking, pre plucked / adjustable straps, synthetic fiber / daily wear, costume parties",
    "sun": """water resistant, reef safe, broad spectrum, oil free / zinc oxide, aloe vera / sensitive skin, daily use, outdoor
        sports""",
    "lips": """long lasting, highly pigmented, smudge proof, easy apply = easy to apply / vitamin e, bees wax / dry lips,
        chapped lips""",
    "eyes": """highly pigmented, easy blend = easy to blend, talc free, long lasting / built mirror = a built in mirror /
        sensitive eyes""",
    "nails": """quick drying, chip resistant, long lasting, easy remove = easy to remove / glossy finish = a glossy finish /
        nail art""",
    "scents": "long lasting, alcohol free, travel size / floral notes, woody notes, glass bottle = a glass bottle / date night",
    "mouth": """bpa free, fluoride free, teeth whitening, clinically proven / soft bristles, fresh mint = fresh mint taste /
        sensitive teeth, bad breath, oral hygiene, sensitive gums""",
    "shave": """double edge, rust resistant, hypoallergenic formula / ergonomic handle = an ergonomic handle / sensitive skin,
        hair removal""",
    "steel": "rust resistant, heavy duty / stainless steel, steel frame = a steel frame, brushed nickel /",
    "bags": """water resistant, large capacity, machine washable / double zipper = a double zipper, padded lining = a padded
        lining / daily travel""",
    "bottles": """leak proof, bpa free, travel size, tsa approved, easy refill = easy to refill / fine mist = a fine mist /
        essential oils""",
    "cable": """gold plated, high speed, tangle free, fast charging / braided nylon, strain relief, aluminum shell = an aluminum
        shell /""",
    "video": """high definition, ultra hd, low latency / high resolution, dual band = dual band wifi / gaming consoles, home
        theater = the home theater""",
    "power": """fast charging, overload protected, energy saving / usb port = a usb port, surge protection / power outages,
        travel abroad""",
    "audio": """noise cancelling, hands free, low latency / wireless bluetooth, stereo sound, deep bass, built microphone = a built in microphone /
        phone calls, long flights""",
    "sport": """sweat proof, quick drying, water resistant / long battery = long battery life, reflective details / daily
        running, gym workouts""",
    "theater": """wall mountable, dust proof / remote control = a remote control, surround sound / home theater = the home
        theater, outdoor movies""",
    "mounts": """full motion, space saving, easy adjust = easy to adjust / cable management, bubble level = a bubble level /
        flat screens""",
    "remote": """battery operated, voice controlled, no programming = ready with no programming / backlit keys, aaa batteries /
        smart tvs""",
    "screen": """touch controlled, water resistant, energy saving / quad core = a quad core chip, hd display = an hd display /
        kids learning, heart rate = tracking the heart rate""",
    "keys": """ultra slim, spill resistant, low noise / backlit keys, wrist rest = a wrist rest / gaming setups, multiple
        devices""",
    "memory": """shock proof, temperature proof, high speed / error correction, large capacity = a large capacity / dash
        cameras, burst photos""",
    "cases": """shock proof, drop tested, ultra slim, dust proof / card slots, tempered glass, kick stand = a kick stand /
        wireless charging""",
    "glass": "scratch resistant, anti glare, bubble free / tempered glass, nano coating = a nano coating / privacy protection",
    "bands": """quick release, skin friendly, adjustable length / stainless steel, soft silicone, magnetic clasp = a magnetic
        clasp / small wrists, daily wear""",
    "photo": """light weight, quick release, fog proof, weather sealed / carbon fiber, optical zoom, padded strap = a padded
        strap / bird watching, travel photos, night vision""",
    "light": """energy efficient, easy assemble = easy to assemble, step dimmable / glass shade = a glass shade, linen shade = a
        linen shade, foot switch = a foot switch / reading corners""",
    "room": """easy clean = easy to clean, mid century / / living room = the living room, dining room = the dining room, guest
        room = the guest room, small spaces""",
    "mounted": """wall mounted, easy hang = easy to hang, ready hang = ready to hang / mounting hardware, wooden frame = a
        wooden frame /""",
    "glass0": """shatter proof, fog free / beveled edges, led lights = led lights around it / bathroom vanity = the bathroom
        vanity""",
    "wood": """assembly required, easy assemble = easy to assemble, fully assembled, scratch resistant / solid wood, metal legs,
        engineered wood, tapered legs /""",
    "store": """space saving, stackable design = stackable by design / storage space = storage space inside, open shelves,
        hidden drawer = a hidden drawer / toy storage, small apartments""",
    "office": "height adjustable, heavy duty / cable holes, lumbar support / home office = the home office, long meetings",
    "seat": """stain resistant, easy assemble = easy to assemble, fully assembled / faux leather, high density = high density
        foam, velvet fabric, metal frame = a metal frame /""",
    "bed": """noise free, easy assemble = easy to assemble, no spring = in no need of a box spring / memory foam, wood slats,
        tufted headboard = a tufted headboard / back pain, guest room = the guest room""",
    "foam": """medium firm, pressure relieving, hypoallergenic fill / memory foam, cooling gel, removable cover = a removable
        cover / side sleepers""",
    "wash": """machine washable, fade resistant, easy care = easy to care for / double stitching, hidden zipper = a hidden
        zipper /""",
    "cosy": """super soft, double sided, pet friendly / sherpa lining = a sherpa lining, tassel fringe = a tassel fringe /
        winter evenings""",
    "cosy0": "super soft, fleece lined, slip resistant / warm lining = a warm lining, memory foam / cold weather, lazy sundays",
    "curtain": "light filtering, water repellent, noise reducing / metal grommets, rod pocket = a rod pocket / bedroom windows",
    "rug": """non slip, low pile, stain resistant, hand woven / rubber backing = a rubber backing, jute fiber / high traffic =
        places of high traffic""",
    "bath": "mildew resistant, quick drying / rust proof = rust proof hooks, weighted hem = a weighted hem / shower stalls",
    "art": """hand painted, ready frame = ready to frame / stretched canvas, vivid colors / home decor, house warming = a house
        warming""",
    "candle": """long burning, lead free, hand poured, smoke free / soy wax, cotton wick = a cotton wick, glass jar = a glass
        jar / stress relief, gift giving""",
    "cloth": """machine wash = safe to machine wash, hand wash = best in a hand wash, tumble dry = safe to tumble dry, wash cold
        = good in a cold wash / polyester spandex, cotton blend = a cotton blend /""",
    "top0": """short sleeve, long sleeve, slim fit, wrinkle free / button closure = a button closure, tagless collar = a tagless
        collar /""",
    "top1": """long sleeve, regular fit, loose fit / kangaroo pocket = a kangaroo pocket, ribbed cuffs, drawstring hood = a
        drawstring hood / cold weather""",
    "bottom": """relaxed fit, high waist, four way stretch / elastic waist = an elastic waist, side pockets, zipper fly = a
        zipper fly /""",
    "knit": "fine knit, pill resistant, loose fit / merino wool, ribbed cuffs, acrylic yarn / autumn layers",
    "wear": """wrinkle free, breathable fabric = made of breathable fabric / / daily wear, office wear, school days, weekend
        trips""",
    "dress": """v neck, hand made / floral print = a floral print, lace trim, ankle strap = an ankle strap / beach vacation = a
        beach vacation, evening parties, wedding guests""",
    "swim": "quick drying, tummy control, fade resistant / padded cups, nylon spandex, adjustable straps / pool parties",
    "shoe": """non slip, water resistant, light weight, slip on = easy to slip on / rubber sole = a rubber sole, memory foam,
        arch support, faux leather, leather sole = a leather sole / wide feet""",
    "drink": """caffeine free, fair trade, naturally flavored, single origin / real fruit, resealable bag = a resealable bag /
        iced drinks, cold mornings""",
    "diet": """gluten free, non gmo, sugar free, dairy free, certified organic, low sodium, kosher certified, soy free / natural
        ingredients / keto diets""",
    "sweet": """individually wrapped, hand made, nut free / real butter, high cocoa = a high share of cocoa, sea salt / party
        favors""",
    "snack": """ready eat = ready to eat, low carb, oven baked, low calorie / dietary fiber, sea salt, high protein = high
        protein content / school lunches, trail hikes""",
    "gift": """perfect gift = packed as the perfect gift, small batch / gift basket = a gift basket / birthday parties,
        valentine day = valentine's day""",
    "meat": "grass fed, fully cooked, gluten free / high protein = high protein content, real smoke / camping trips",
    "pantry": """quick cooking, small batch, slow cooked, vegan friendly / whole grain, olive oil, ripe tomatoes / family
        dinners""",
}
"""Group → what a product is / what it has / what it is for."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    "scent": ("scent", "size:fluid"),
    "volume": ("size:fluid", "style:set"),
    "tone": ("color:tone", "size:count"),
    "plain": ("color", "style:set"),
    "pattern": ("color:pattern", "size:device"),
    "length": ("size:length", "color"),
    "plug": ("style:plug", "color"),
    "gear": ("style:gear", "color"),
    "memory": ("size:memory", "color"),
    "inches": ("size:inches", "color:pattern"),
    "finish": ("color:finish", "size:large"),
    "bed": ("size:bed", "color:finish"),
    "wear": ("size:wear", "color", "fit type"),
    "shoe": ("color", "size:shoe", "special size:width"),
    "flavor": ("flavor name", "size:food"),
    "pack": ("size:food", "flavor name"),
}
"""Options of a kind, the first one first: name, and the row of `VALUES` where it is not the name's."""

VALUES: Mapping[str, str] = {
    "color": """black, white, navy blue, grey, red, blue, green, pink, beige, brown, purple, dark green, light blue, khaki, wine red,
        yellow, orange, charcoal, royal blue, army green, rose gold, black/white, heather grey, burgundy, mint green, coral, teal,
        cream, lavender, rust, silver, dusty rose, ocean blue, a-black, b-white, c-green, mustard, plum, sand, copper""",
    "color:tone": """natural black, warm brown, honey blonde, rose nude, 01 ivory, 02 sand, 03 caramel, deep red, soft pink, berry, copper,
        chestnut, silver grey, peach, mauve, cherry red, 1b off black, 27 strawberry, midnight blue, golden bronze, cocoa, clear, lilac""",
    "color:pattern": """black, grey, navy blue, white marble, pink floral, green leaf, blue stripe, brown plaid, sunset clouds, purple butterfly,
        gold feather, red poppy, forest fox, yellow lemon, teal waves, black cat, star map, rainbow dots, blue whale, cherry blossom,
        desert cactus, geometric-1, geometric-2, geometric-3, pine cone, koi pond, snow owl, moon phases""",
    "color:finish": """black, white, walnut, natural oak, grey, brushed brass, dark brown, espresso, antique bronze, light grey, rustic brown, beige,
        matte nickel, navy blue, emerald green, white/oak, black/walnut, cherry, ivory, blush pink, gunmetal, bleached pine, teak""",
    "scent": """lavender, unscented, vanilla, fresh linen, rose, eucalyptus mint, citrus, coconut, vetiver, green tea, jasmine, wild thyme,
        cedar & amber, sea breeze, honey oat, cucumber melon, cinnamon, pear, white musk, fig leaf, rain, black pepper, orange blossom""",
    "flavor name": """original, chocolate, vanilla, lemon, sea salt, fresh mint, honey, spicy, strawberry, ginger, barbecue, apple cinnamon, mango,
        caramel, peach, raspberry, garlic & herb, chili lime, hazelnut, coconut, smoky, black pepper, cherry, maple, teriyaki, variety pack,
        orange, tomato basil, wild berry, espresso, turmeric, cranberry""",
    "size:fluid": "1 fl oz, 2 fl oz, 3.4 fl oz, 4 fl oz, 6 fl oz, 8 fl oz, 12 fl oz, 16 fl oz, 32 fl oz, 2 fl oz (pack of 2), 8 fl oz (pack of 3)",
    "size:count": "1 count, 2 count, 3 count, 5 count, 6 count, 8 count, 10 count, 12 count, 24 count",
    "size:food": """4 ounce (pack of 1), 6 ounce (pack of 1), 8 ounce (pack of 1), 8 ounce (pack of 2), 12 ounce (pack of 3), 1 pound (pack of 1),
        2 pound (pack of 1), 10 ounce (pack of 6), 5 pound (bulk), 1.5 ounce (pack of 12), 2 ounce (pack of 24)""",
    "size:length": "3 feet, 5 feet, 6 feet, 8 feet, 10 feet, 12 feet, 15 feet, 20 feet, 25 feet, 33 feet, 50 feet",
    "size:memory": "16gb, 32gb, 64gb, 128gb, 256gb, 512gb, 1tb",
    "size:device": "small, medium, large, 6.1 inch, 6.7 inch, 10.2 inch, 10.9 inch, 41mm, 45mm",
    "size:inches": """12x16 inch, 16x24 inch, 18x18 inch, 20x26 inch, 24x36 inch, 40x60 inch, 50x60 inch, 52x63 inch, 52x84 inch, 60x80 inch,
        72x72 inch, 84 inch, 100 inch, 120 inch, 5 x 7 ft, 8 x 10 ft""",
    "size:large": "16 inch, 20 inch, 24 inch, 30 inch, 36 inch, 42 inch, 47 inch, 55 inch, 60 inch, 63 inch, 70 inch, set of 2, set of 4",
    "size:bed": "twin, twin xl, full, queen, king, california king",
    "size:wear": "x-small, small, medium, large, x-large, xx-large, 3x-large, 4x-large, 5x-large",
    "size:shoe": "5, 5.5, 6, 6.5, 7, 7.5, 8, 8.5, 9, 9.5, 10, 10.5, 11, 12, 13",
    "special size:width": "narrow, regular, wide",
    "fit type": "regular, tall, petite",
    "style:set": "single, starter set, gift set, refill, family pack, travel kit",
    "style:plug": "one port, two ports, four ports, with cable, with adapter, foldable, car and wall",
    "style:gear": "basic, regular, pro, compact, deluxe, with tripod, with case, bundle, kit, second generation, 8x32, 10x42, 12x50",
}
"""Values of an option in their order, / as the official files have it.

None has a colour of the reward's within a word, as peppermint has mint: the reward takes the one for the other, and by the letter
of its rules such a value does not match itself."""
