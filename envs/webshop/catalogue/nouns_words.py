"""What the rule of `nouns.py` knows of words. Nothing here is a noun of a product's title, with the exceptions told there.

Two cases are kept apart, for a tagger trained on news takes a word with a capital letter in the middle of a title for part of
a name ("Portable", "Soft"): what makes only small words no nouns is longer than what makes capitals none.
"""

from __future__ import annotations

FUNCTION_WORDS = frozenset(
    """
    a an the this that these those each every all any both either neither some such no not
    and or nor but so yet if than because while whereas although unless
    of in on at by for from to into onto with within without over under up down out off between among across through about
    after before during since until via per against around behind below beside besides beyond above along near upon as like
    except inside outside toward towards
    i you he she it we they me him her us them my your his its our their mine yours hers ours theirs
    myself yourself itself ourselves themselves who whom whose which what when where why how whatever
    be is are was were been being am do does did done has have had having can could will would shall should may might must
    's ’s n't n’t etc
    very too also just only even still again always never ever here there then now more most less least much many few several
    """.split()
)
"""Articles, conjunctions, prepositions, pronouns, auxiliaries, particles and adverbs: no nouns, however they are written."""

NUMBER_WORDS = frozenset(
    """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
    nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million
    """.split()
)

OFTEN_NO_NOUN = frozenset(
    """
    approved assembled beautiful built bulk cleaned coated comes contains covered crafted customized decorated
    designed each easily enriched featuring filled finished fits fixed flavored formulated full fully gives great
    helps highly hydrates improved including infused inspired insulated keep keeps lasting lightly lined listed made
    make makes making moisturizes newly oriental perfectly powered protects provides quilted reclining recommended
    reduce reduces remove removes resealable scented supports tested ultra upgraded use used using various wear
    """.split()
)
"""Adjectives, participles and verbs that stay such with a capital letter."""

SMALL_NO_NOUN = frozenset(
    """
    able active add adds adhesive adjustable adult allow allows american anti apply artificial assorted automatic bad
    based basic best better big black blue bold bright bring brings broad brown busy buy calm carry casual certain
    certified chic classic clean cleans clear close cold come comfortable common compatible complete con cool correct
    create creates crisp curly current cushioned custom cute daily damaged dark de decorative deep delicate delicious
    dense des di different digital dirty double dry du dual durable dutch early easy el elastic electric electronic
    elegant embroidered empty enjoy essential et european exact excellent exclusive external extra facial famous fast
    fat feel feels find fine firm fit fitted flat flexible floral fluffy formal free french fresh friendly fun
    functional furry general gentle genuine get gets give go good grand gray green grey half handmade handy happy hard
    healthy heavy help herbal high hold holds hollow holy hot huge ideal indoor industrial initial inner instant
    internal italian japanese keen know korean la large last late lavish lazy le left let lets light lightweight
    liquid little local long look looks loose loud love lovely loves low lucky luxurious magic magnetic main male
    manual many matte mature medical medium metallic mild mini mobile modern moist multi multiple narrow national
    natural neat need needs new nice non normal notable nude odd offer offers official old open optical optimal oral
    ordinary organic original other oval overall own padded pale perfect permanent personalized perspirant petite pink
    plain plump plus popular portable positive powerful practical precious premium pretty prevent prevents printed
    private pro professional proper protect provide pure purple quick quiet rare raw ready real rear rechargeable red
    refurbished regular relieve relieves removable renewed replaceable reusable rich right rigid romantic rough round
    royal rugged rustic safe salty same seamless secure see semi sensitive separate sexy sharp sheer shiny short show
    shows silent silky simple single sleek sleeveless slender slim slow small smart smooth soft solar solid soothe
    soothes sour spare special spicy stable stainless standard stay stays sticky stiff straight strong sturdy stylish
    subtle suit suits super supreme sweet swift synthetic take takes tall tan tempered tender thick thin thorough
    tight tiny top total tough traditional tropical true try tufted typical ultimate und unique universal unscented
    unsweetened upholstered upper urban useful uses usual valuable vegan vertical vibrant vintage virtual vivid warm
    washable waterproof weak wears wet white whole wide wild wireless wise wonderful wooden work works x yellow young
    """.split()
)
"""Adjectives, verbs and foreign particles, as long as they are written small; a capital letter makes a name of them."""
