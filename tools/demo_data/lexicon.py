"""Closed word lists for the synthetic conversations: names, places, things, small world facts.

Data only.  `words.py` draws from it; `tasks/` knows what the lists are for.
"""

FIRST_NAMES = """
Ada Adam Agnes Aisha Alan Albert Alice Amara Amir Amy Ana Anders Andre Angela Anita Anna Anton Aria
Arjun Arthur Asha Astrid Aurora Ava Basil Beatrix Ben Bianca Bjorn Boris Bruno Camille Carla Carlos
Carmen Cecil Celia Chen Chloe Clara Conrad Cora Cyrus Daisy Dana Daniel Daria David Deepa Diana Diego
Dora Doris Edgar Edith Elena Eli Elsa Emil Emma Enzo Erik Esther Ethan Eva Fatima Felix Fiona Flora
Frank Frida Gabriel Gemma George Gina Grace Greta Gustav Hana Hannah Harold Hassan Hazel Heidi Helen
Henry Hilda Hugo Ida Ilse Imran Ines Ingrid Irene Iris Isaac Isabel Ivan Ivy Jack Jakob James Jana
Jane Jasper Javier Jean Jin Joan Jonas Jorge Jose Julia Julian Kai Kamala Karen Karl Kasper Kate Keiko
Kenji Kevin Kira Klara Kofi Lara Lars Laura Lea Leila Lena Leo Leon Liam Lily Linda Linus Lisa Lola
Louis Lucas Lucia Luna Lydia Magnus Maja Malik Marco Maria Marie Mark Marta Martin Mary Mateo Maya
Mei Mia Mika Mila Milo Mina Miriam Mohamed Mona Nadia Naomi Nelson Nico Nina Noah Nora Olaf Olga Oliver
Olivia Omar Oscar Otto Pablo Pamela Paul Paula Pedro Petra Philip Pia Priya Quentin Rachel Rafael
Rahul Ravi Rebecca Rita Robert Robin Rosa Ruben Ruth Salma Sam Samir Sandra Sara Sasha Sean Silvia
Simon Sofia Sonja Stella Steve Sven Tara Tessa Theo Thomas Tilda Tim Tina Tom Tomas Uma Ursula Vera
Victor Vikram Viola Walter Wanda Wei Willa Xavier Yara Yasmin Yuki Yusuf Zara Zelda Zoe
""".split()

LAST_NAMES = """
Abbott Acosta Adler Ahmed Albers Anders Archer Bakker Banks Barnes Bauer Becker Bell Berg Bishop
Blake Bloom Boone Brandt Brooks Burke Calder Carver Castro Chan Chandra Clarke Cohen Conti Cooper
Costa Cruz Dalton Das Davis Dietrich Dixon Doyle Drake Dubois Duran Eklund Ellis Engel Evans Falk
Farrell Fischer Fleming Flores Foster Fox Frost Fuchs Garcia Gibson Goldman Gomez Grant Gray Green
Gupta Hahn Hale Hansen Harper Hart Hayes Heller Holm Horn Hughes Hunt Ito Ivanov Jansen Jensen Jones
Kaplan Kaur Keller Khan Kim Klein Koch Kowalski Kramer Kumar Lang Larsen Lee Lehmann Lind Lopez
Lund Mancini Marsh Mason Mehta Mendez Meyer Miller Mills Moreau Moreno Morris Nakamura Nash Nielsen
Novak Okafor Olsen Ortega Osborn Park Patel Perez Peters Petrov Pierce Porter Quinn Ramos Rao Reed
Reyes Richter Rivera Rossi Roth Russo Sanders Santos Sato Schmidt Schulz Shah Sharp Silva Singh
Sloan Stark Stein Stone Suzuki Svensson Tanaka Taylor Thorne Torres Turner Vance Vargas Vega Vogel
Wagner Walsh Wang Ward Weber West White Winter Wolf Wood Wright Yang Young Zhang Ziegler
""".split()

CITIES = """
Accra Adelaide Algiers Amsterdam Ankara Antwerp Athens Auckland Baghdad Bangkok Barcelona Basel
Beijing Belfast Bergen Berlin Bern Bogota Bonn Boston Bristol Brussels Budapest Cairo Calgary Canberra
Caracas Cardiff Chicago Cologne Copenhagen Cork Dakar Dallas Delhi Denver Detroit Dhaka Doha Dresden
Dubai Dublin Durban Edinburgh Florence Frankfurt Geneva Ghent Glasgow Hamburg Hanoi Havana Helsinki
Houston Istanbul Jakarta Karachi Kigali Kingston Krakow Kyoto Lagos Leeds Leipzig Lima Lisbon London
Luanda Lyon Madrid Malaga Malmo Manila Marseille Melbourne Mexico Miami Milan Minsk Montreal Moscow
Mumbai Munich Nagoya Nairobi Naples Nice Oslo Osaka Ottawa Oxford Palermo Paris Perth Porto Prague
Quito Riga Rome Rotterdam Salzburg Santiago Seattle Seoul Seville Shanghai Sofia Stockholm Stuttgart
Sydney Taipei Tallinn Tampere Tehran Tokyo Toronto Tunis Turin Utrecht Valencia Vancouver Venice
Vienna Vilnius Warsaw Wellington Winnipeg York Zagreb Zurich
""".split()

LONG_CITIES = (
    "New York,Los Angeles,San Francisco,San Diego,Las Vegas,New Orleans,Salt Lake City,Kansas City,"
    "Mexico City,Buenos Aires,Rio de Janeiro,Sao Paulo,Cape Town,Hong Kong,Kuala Lumpur,New Delhi,"
    "Tel Aviv,Abu Dhabi,Addis Ababa,Saint Petersburg,The Hague,Panama City,Santa Fe,San Jose,"
    "Ho Chi Minh City,Port Louis,Novi Sad,Baden-Baden,Aix-en-Provence,Stratford-upon-Avon"
).split(",")

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "Austria": "Vienna", "Switzerland": "Bern", "Belgium": "Brussels", "Denmark": "Copenhagen",
    "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki", "Poland": "Warsaw",
    "Hungary": "Budapest", "Greece": "Athens", "Ireland": "Dublin", "Iceland": "Reykjavik",
    "Russia": "Moscow", "Ukraine": "Kyiv", "Romania": "Bucharest", "Bulgaria": "Sofia",
    "Croatia": "Zagreb", "Serbia": "Belgrade", "Estonia": "Tallinn", "Latvia": "Riga",
    "Lithuania": "Vilnius", "Turkey": "Ankara", "Egypt": "Cairo", "Kenya": "Nairobi",
    "Ghana": "Accra", "Senegal": "Dakar", "Tunisia": "Tunis", "Algeria": "Algiers",
    "Angola": "Luanda", "Ethiopia": "Addis Ababa", "Rwanda": "Kigali", "China": "Beijing",
    "Japan": "Tokyo", "India": "New Delhi", "Thailand": "Bangkok", "Vietnam": "Hanoi",
    "Indonesia": "Jakarta", "South Korea": "Seoul", "Iran": "Tehran", "Iraq": "Baghdad",
    "Qatar": "Doha", "Australia": "Canberra", "New Zealand": "Wellington", "Canada": "Ottawa",
    "Mexico": "Mexico City", "Cuba": "Havana", "Jamaica": "Kingston", "Brazil": "Brasilia",
    "Argentina": "Buenos Aires", "Chile": "Santiago", "Peru": "Lima", "Colombia": "Bogota",
    "Ecuador": "Quito", "Venezuela": "Caracas", "Uruguay": "Montevideo",
    "the United States": "Washington", "the United Kingdom": "London",
    "the Netherlands": "Amsterdam", "the Czech Republic": "Prague", "the Philippines": "Manila",
}  # fmt: skip

COLOURS = "red green blue yellow orange purple pink brown black white grey silver golden".split()

JOBS = """
accountant actor architect artist baker banker barber biologist builder butcher carpenter chemist
clerk coach cook dancer dentist designer doctor driver editor electrician engineer farmer
firefighter fisherman gardener geologist guide hairdresser historian journalist judge lawyer
librarian locksmith mechanic miner musician nurse optician painter pharmacist photographer physicist
pilot plumber poet potter programmer publisher sailor scientist sculptor singer surgeon tailor
teacher translator vet waiter watchmaker weaver welder writer
""".split()

ANIMALS = """
ant badger bear beaver bee camel cat cow crab crow deer dog dolphin donkey duck eagle elephant fox
frog goat goose hamster hare hedgehog hen heron horse lamb lion lizard lynx mole monkey moose mouse
octopus otter owl parrot penguin pig pony rabbit raven robin salmon seal shark sheep snail snake
sparrow spider squirrel swan tiger toad turtle whale wolf zebra
""".split()

FOODS = """
apples bananas beans bread butter cake carrots cheese cherries chips chocolate coffee cookies corn
curry dates eggs figs fish grapes honey jam juice lemons lentils mangoes milk mushrooms noodles nuts
olives onions oranges pancakes pasta peaches pears peas pepper pizza plums potatoes pumpkin rice
salad salt sandwiches soup spinach sugar tea toast tomatoes waffles walnuts yogurt
""".split()

ROOMS = """
kitchen bedroom bathroom garage garden attic cellar office library hall workshop studio balcony
nursery pantry lounge laundry porch study corridor
""".split()

OBJECTS = """
bag ball basket bell belt bicycle blanket boat book bottle bowl box bracelet broom brush bucket
camera candle carpet chair clock coat coin compass cup curtain desk diary door drum fan flag flute
fork glove guitar hammer hat helmet jacket jar kettle key knife ladder lamp lantern letter map
mirror mug needle newspaper notebook pan parcel passport pen pencil phone piano pillow plate poster
purse radio ring rope ruler scarf scissors shelf shirt shoe shovel sofa spoon stamp statue suitcase
table telescope tent ticket towel toy tray trumpet umbrella vase violin wallet watch wheel whistle
""".split()

PLACES = """
airport bakery bank beach bridge cafe castle cinema church factory farm forest fountain gallery
gym harbour hospital hotel island lake market mill mine monastery mountain museum observatory palace
park pharmacy pier prison restaurant river school shop stadium station temple theatre tower valley
village warehouse well zoo
""".split()

THINGS = """
access account address agenda airport album alias amount animal answer appointment archive area
article author backup badge balance band bank batch bill block board boat book booking bottle box
branch bridge budget bus cabin calendar camera campaign captain car card cargo case category channel
chapter chart city class client clock club coach code colour column comment company contact
container contract country county coupon course crew currency customer dashboard database date
deadline department deposit desk device diagram director district doctor document door driver
duration editor email engine entry event exam exhibit export factory file filter flag flight folder
forecast form fuel garden gate goal grade group guest guide harbour height horse hotel image
index invoice item job journal key label language laptop leader letter level licence limit link list
lock log machine manager map market mayor meal meeting member memo menu message meter mode model
module motor museum name network node note notice number office option order origin owner package
page painter palette panel parcel park partner password patient payment permit phone photo pilot
pipeline plan plant platform player playlist policy port poster price printer priority product
profile project prize queue quota rack radio rank rate recipe record region register reminder
rental report request reserve result review reward ride river road robot role room route rule sample
school score screen script season seat section sensor server service session shelf ship shipment
shop signal size sketch slot song source speed stage station status stock stop store street style
subject subscription supplier survey switch symbol system table tag target task tax team template
tenant terminal test theme ticket tile timer title token tool topic tour tower track trail train
trip truck tunnel unit user value vehicle vendor version video village visit visitor voice volume
voucher wallet warehouse weather week weight window worker zone
""".split()

VERBS = """
add approve archive arrange assign attach book build buy cancel change charge check clean clear
close compare compute confirm connect copy count create cut delete deliver describe detect disable
download draw edit enable estimate export fetch fill filter find fix follow format get import
inspect install invite label launch list load lock log look_up mark measure merge move notify open
order pack paint park pause pay pick plan play post prepare print publish query rate read record
refund register release remove rename rent repair replace report request reserve reset resize
restart restore resume return reverse review run save scan schedule search select sell send set
share ship show sort split start stop store submit swap sync tag test track transfer translate turn
unlock update upload use validate verify view weigh write
""".split()

MONTHS = (
    "January February March April May June July August September October November December"
).split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
SEASONS = "spring summer autumn winter".split()
PLANETS = "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split()
LANGUAGES = """
Arabic Bengali Chinese Czech Danish Dutch English Finnish French German Greek Hebrew Hindi Hungarian
Italian Japanese Korean Norwegian Persian Polish Portuguese Russian Spanish Swahili Swedish Tamil
Thai Turkish Urdu Vietnamese
""".split()
CURRENCIES = "USD EUR GBP JPY CHF SEK NOK DKK INR CNY KRW BRL CAD AUD PLN TRY ZAR MXN".split()

OPPOSITES = dict(
    pair.split(":")
    for pair in (
        "hot:cold big:small tall:short fast:slow old:young happy:sad light:dark open:closed up:down "
        "left:right day:night good:bad rich:poor strong:weak hard:soft wet:dry loud:quiet early:late "
        "full:empty clean:dirty near:far high:low wide:narrow thick:thin heavy:light new:old "
        "true:false first:last in:out above:below before:after love:hate win:lose buy:sell "
        "push:pull give:take start:stop begin:end come:go remember:forget question:answer "
        "north:south east:west summer:winter friend:enemy inside:outside front:back always:never "
        "many:few sharp:blunt sweet:sour deep:shallow cheap:expensive easy:difficult"
    ).split()
)
SOUNDS = {
    "dog": "barks", "cat": "meows", "cow": "moos", "sheep": "bleats", "duck": "quacks",
    "horse": "neighs", "lion": "roars", "pig": "grunts", "wolf": "howls", "bee": "buzzes",
    "snake": "hisses", "frog": "croaks", "owl": "hoots", "mouse": "squeaks", "hen": "clucks",
}  # fmt: skip
YOUNG = {
    "dog": "puppy", "cat": "kitten", "cow": "calf", "sheep": "lamb", "horse": "foal",
    "duck": "duckling", "goat": "kid", "pig": "piglet", "lion": "cub", "bear": "cub",
    "frog": "tadpole", "hen": "chick", "goose": "gosling", "swan": "cygnet", "owl": "owlet",
}  # fmt: skip
LEGS = {
    "dog": 4, "cat": 4, "cow": 4, "horse": 4, "spider": 8, "ant": 6, "bee": 6, "duck": 2, "hen": 2,
    "snake": 0, "octopus": 8, "crab": 10, "owl": 2, "sheep": 4, "lion": 4, "elephant": 4,
}  # fmt: skip
COLOUR_OF = {
    "grass": "green", "snow": "white", "the sky": "blue", "a banana": "yellow", "coal": "black",
    "blood": "red", "milk": "white", "a lemon": "yellow", "a carrot": "orange", "a cloud": "white",
    "a tomato": "red", "a leaf": "green", "the sea": "blue", "chocolate": "brown",
    "the sun": "yellow", "an elephant": "grey", "a pig": "pink", "a strawberry": "red",
}  # fmt: skip
ELEMENTS = {
    "hydrogen": "H", "helium": "He", "carbon": "C", "nitrogen": "N", "oxygen": "O", "neon": "Ne",
    "sodium": "Na", "magnesium": "Mg", "aluminium": "Al", "silicon": "Si", "sulphur": "S",
    "chlorine": "Cl", "potassium": "K", "calcium": "Ca", "iron": "Fe", "copper": "Cu",
    "zinc": "Zn", "silver": "Ag", "tin": "Sn", "gold": "Au", "mercury": "Hg", "lead": "Pb",
}  # fmt: skip
PAST = dict(
    pair.split(":")
    for pair in (
        "go:went see:saw eat:ate take:took give:gave run:ran write:wrote read:read make:made "
        "come:came know:knew think:thought buy:bought bring:brought catch:caught teach:taught "
        "sing:sang swim:swam drink:drank begin:began fly:flew grow:grew throw:threw speak:spoke "
        "break:broke choose:chose drive:drove ride:rode find:found hold:held tell:told sell:sold "
        "leave:left keep:kept sleep:slept build:built send:sent lose:lost win:won walk:walked "
        "play:played work:worked look:looked open:opened help:helped"
    ).split()
)
PLURALS = dict(
    pair.split(":")
    for pair in (
        "child:children mouse:mice foot:feet tooth:teeth goose:geese man:men woman:women "
        "person:people ox:oxen sheep:sheep fish:fish leaf:leaves wolf:wolves knife:knives "
        "city:cities baby:babies box:boxes bus:buses dog:dogs cat:cats house:houses book:books "
        "tree:trees car:cars potato:potatoes hero:heroes"
    ).split()
)
UNITS = {
    ("seconds", "a minute"): 60, ("minutes", "an hour"): 60, ("hours", "a day"): 24,
    ("days", "a week"): 7, ("months", "a year"): 12, ("days", "a year"): 365,
    ("weeks", "a year"): 52, ("years", "a decade"): 10, ("years", "a century"): 100,
    ("centimetres", "a metre"): 100, ("metres", "a kilometre"): 1000,
    ("grams", "a kilogram"): 1000, ("bits", "a byte"): 8, ("bytes", "a kibibyte"): 1024,
    ("sides", "a triangle"): 3, ("sides", "a square"): 4, ("sides", "a hexagon"): 6,
    ("letters", "the English alphabet"): 26, ("players", "a football team"): 11,
    ("strings", "a violin"): 4, ("planets", "the solar system"): 8, ("wheels", "a bicycle"): 2,
    ("wheels", "a car"): 4, ("cards", "a deck of cards"): 52, ("seasons", "a year"): 4,
}  # fmt: skip
