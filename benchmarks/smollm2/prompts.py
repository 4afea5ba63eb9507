"""Prompts whose greedy answers train and test a draft model for SmolLM2-135M-Instruct.

All prompts here were written for this project; none is taken from a data set. The training
prompts are templates times subjects: each kind of subject (places, foods, jobs, ...) has its own
templates, and the subjects carry their own articles, so that every combination is grammatical.
The held-out prompts are written one by one and share neither template wording nor subject with
the training prompts.
"""

from __future__ import annotations

import random
from typing import NamedTuple


class Kind(NamedTuple):
    """Templates and the subjects that fit their single ``{}`` slot.

    Attributes:
        name: A short label of the kind.
        templates: Prompts with one ``{}`` slot each.
        subjects: What goes into the slot.
    """

    name: str
    templates: tuple[str, ...]
    subjects: tuple[str, ...]


def _items(text: str) -> tuple[str, ...]:
    """Splits a semicolon-separated list, joining what was wrapped over lines.

    Args:
        text: The items, separated by semicolons.

    Returns:
        The items with their white space normalised.
    """
    return tuple(" ".join(item.split()) for item in text.split(";"))


_SUMS: tuple[str, ...] = tuple(
    f"{7 * i + 5} {word} {3 * i + 4}" for word in ("plus", "times", "minus") for i in range(1, 21)
)

KINDS: tuple[Kind, ...] = (
    Kind(
        "things",
        (
            "How does {} work?",
            "What is {} used for?",
            "Describe {} to someone who has never seen one.",
            "What should I look for when buying {}?",
            "How do I take good care of {}?",
        ),
        _items("""
            a bicycle; a pencil sharpener; a microwave oven; a refrigerator; a washing machine; a
            vacuum cleaner; a flashlight; a stapler; a ballpoint pen; an umbrella; a backpack; a
            wristwatch; an alarm clock; a kitchen scale; a toaster; a blender; a rice cooker; a
            pressure cooker; a dishwasher; a hair dryer; an electric fan; an air conditioner; a
            space heater; a smoke detector; a fire extinguisher; a door lock; a padlock; a zipper; a
            sewing machine; a hammer; a screwdriver; a power drill; a hand saw; a tape measure; a
            spirit level; a wheelbarrow; a lawn mower; a garden hose; a watering can; a greenhouse;
            a compost bin; a bird feeder; a fishing rod; a kayak; a sailboat; a life jacket; a tent;
            a sleeping bag; a camping stove; a compass; a pair of binoculars; a telescope; a
            microscope; a magnifying glass; a thermometer; a barometer; a calculator; a laptop; a
            computer mouse; a keyboard; a printer; a scanner; a digital camera; a tripod; a
            smartphone; a tablet; a radio; a television; a record player; a piano; an acoustic
            guitar; a violin; a flute; a trumpet; a harmonica; a metronome; a skateboard; a pair of
            roller skates; a snowboard; a tennis racket; a basketball hoop; a yoga mat; a treadmill;
            a bathroom scale; an electric toothbrush; a razor; a wool sweater; a leather jacket; a
            cast iron pan; a wooden cutting board; a chef's knife; a water filter; a solar panel; a
            wind turbine; an electric car; a motorcycle; a hot air balloon
        """),
    ),
    Kind(
        "skills",
        (
            "How do I {}?",
            "I want to learn how to {}. Where should I start?",
            "What mistakes should a beginner avoid when trying to {}?",
            "Write short step-by-step instructions for someone who wants to {}.",
            "How long does it usually take a person to learn to {}?",
            "Explain in a few sentences how to {}.",
        ),
        _items("""
            ride a horse; swim the front crawl; juggle three balls; tie a necktie; sew on a button;
            iron a shirt; fold a fitted sheet; change a flat tire; jump-start a car; drive a stick
            shift; parallel park; read a map; build a campfire; pitch a shelter; catch a fish; plant
            a tree; grow herbs on a windowsill; prune roses; start a compost pile; paint a room;
            hang a picture straight; fix a leaky faucet; unclog a drain; patch a hole in drywall;
            sharpen a knife; poach an egg; knead dough; roll sushi; brew green tea; decorate a cake;
            cook rice perfectly; peel garlic quickly; carve a turkey; set a table; write a poem;
            write a resume; write a cover letter; keep a diary; take notes in class; read faster;
            memorize a speech; speak in public; tell a good story; negotiate a salary; run a
            meeting; make a budget; read a pay slip; file taxes; open a bank account; plan a road
            trip; pack a suitcase; take a good photo; edit a video; draw a face; paint with
            watercolors; write in calligraphy; fold an origami crane; crochet a scarf; make candles;
            make soap; throw a pot on a wheel; carve wood; play the ukulele; sing in tune; read
            sheet music; whistle with two fingers; dance the waltz; do a cartwheel; do a push-up;
            hold a plank; run five kilometers; stretch properly; meditate; solve a crossword puzzle;
            play checkers; play poker; shuffle cards; do a simple magic trick; train a puppy; groom
            a long-haired dog; clean a fish tank; type without looking; build a website; back up a
            computer; create a strong password; use a spreadsheet; make a slide presentation; record
            a podcast; speak a new language; get neater handwriting; give a firm handshake; write a
            thank-you note; perform basic first aid; treat a small burn; remove a splinter; wrap a
            gift
        """),
    ),
    Kind(
        "places",
        (
            "What should I see on a short visit to {}?",
            "Tell me something interesting about {}.",
            "What is the weather usually like in {}?",
            "Write a short travel blurb about {}.",
            "What kind of food do people eat in {}?",
            "My family is going to {} next summer. What should we pack?",
        ),
        _items("""
            Paris; London; Rome; Venice; Berlin; Munich; Vienna; Prague; Budapest; Warsaw; Athens;
            Istanbul; Madrid; Barcelona; Lisbon; Amsterdam; Brussels; Copenhagen; Stockholm; Oslo;
            Helsinki; Dublin; Edinburgh; Moscow; Cairo; Marrakesh; Cape Town; Lagos; Accra;
            Zanzibar; Dubai; Jerusalem; Mumbai; Delhi; Kathmandu; Bangkok; Singapore; Bali; Hanoi;
            Hong Kong; Shanghai; Beijing; Seoul; Tokyo; Kyoto; Sydney; Melbourne; Auckland; Hawaii;
            Alaska; Seattle; San Francisco; Los Angeles; Las Vegas; Chicago; New Orleans; Miami;
            Boston; New York City; Philadelphia; Texas; Toronto; Montreal; Vancouver; Mexico City;
            Cuba; Jamaica; Costa Rica; Colombia; Brazil; Argentina; Chile; Scotland; Wales; Norway;
            Switzerland; Italy; Greece; Turkey; Morocco; Tanzania; South Africa; Madagascar; India;
            Sri Lanka; Thailand; Vietnam; Japan; the Philippines; New Zealand
        """),
    ),
    Kind(
        "jobs",
        (
            "What does {} do all day?",
            "What skills does a person need to become {}?",
            "Write a short job description for {}.",
            "What questions would you ask {} in an interview?",
            "Describe a difficult day in the life of {}.",
        ),
        _items("""
            a nurse; a surgeon; a dentist; a pharmacist; a veterinarian; a paramedic; a firefighter;
            a police officer; a judge; a lawyer; an accountant; a bank teller; an economist; a
            financial advisor; an insurance agent; a real estate agent; an architect; a civil
            engineer; an electrician; a plumber; a carpenter; a bricklayer; a roofer; a welder; a
            mechanic; a truck driver; a bus driver; a taxi driver; an airline pilot; a flight
            attendant; an air traffic controller; a sailor; a farmer; a beekeeper; a gardener; a
            florist; a butcher; a pastry chef; a head cook; a waiter; a bartender; a hotel manager;
            a tour guide; a translator; a journalist; an editor; a novelist; a screenwriter; a
            photographer; a film director; an actor; a stage designer; a dancer; an orchestra
            conductor; a music teacher; a kindergarten teacher; a math teacher; a school principal;
            a librarian; a museum curator; an archaeologist; a historian; a psychologist; a social
            worker; a physical therapist; a personal trainer; a sports coach; a tailor; a fashion
            designer; a hairdresser; a graphic designer; a web developer; a data analyst; a game
            designer; a network administrator; a biologist; a chemist; an astronomer; a geologist; a
            meteorologist; a park ranger; a zookeeper; a lifeguard; a mail carrier; a warehouse
            worker; a cashier; a store manager; a sales representative; a project manager; an event
            planner
        """),
    ),
    Kind(
        "situations",
        (
            "{}. What should I do?",
            "{}. Can you give me some advice?",
            "Hi! {}. Do you have any ideas for me?",
            "{}. Say something kind to cheer me up.",
            "{}. How would you handle this?",
        ),
        _items("""
            I have a big exam tomorrow and I feel nervous; I can't fall asleep at night; I had an
            argument with my best friend; I feel lonely in a new city; I lost my wallet on the bus;
            I forgot my mother's birthday; I was late for work again; I don't enjoy my job anymore;
            I have a job interview on Monday; I did not get the job I wanted; I got a bad grade in
            math; I feel tired all the time; I spend too much time on my phone; I have too much to
            do and too little time; I keep putting off my homework; I want to quit eating sugar; I
            find it hard to wake up early; I am afraid of flying; I am afraid of speaking in front
            of people; I feel shy at parties; I want to make new friends at school; My neighbor
            plays loud music at night; My dog barks whenever I leave the house; My plants keep
            dying; My computer is very slow; My car makes a strange noise; My boss never listens to
            my ideas; My coworker takes credit for my work; My brother and I fight all the time; My
            daughter does not like reading; My son is bored during the holidays; My grandmother
            lives alone and feels sad; My friend is moving to another country; My friend borrowed
            money and won't pay it back; My cat passed away last week; I broke a vase at my friend's
            house; I said something mean and I regret it; I feel jealous of my sister; I feel
            nervous about my first day at college; I want to save money but I never can; I don't
            know what to cook tonight; I don't know what to study at university; I can't decide
            where to go on vacation; I have nothing to wear to a dinner party; I burned the food and
            guests are coming soon; I missed my flight; I am lost in a city I don't know; I got
            caught in the rain without a coat; I caught a cold just before a trip; I hurt my ankle
            while running; I want to start exercising but I feel lazy; I want to get better at
            drawing; I feel stressed about money; I feel bored on Sunday afternoons; I feel
            homesick; I feel proud of my team but nobody noticed our work; I moved in with two
            people who never clean; I have to give a gift to someone I barely know; I have to say no
            to a friend; I am learning English and I feel stuck; I retired last month and I don't
            know how to fill my days
        """),
    ),
    Kind(
        "foods",
        (
            "How do I make {} at home?",
            "Give me a simple recipe for {}.",
            "What ingredients do I need for {}?",
            "What side dish or drink goes well with {}?",
            "Write a short menu description for {}.",
        ),
        _items("""
            tomato soup; chicken noodle soup; vegetable stew; beef stew; mushroom risotto; fried
            rice; spaghetti with meatballs; macaroni and cheese; pesto pasta; potato salad;
            coleslaw; Greek salad; Caesar salad; fruit salad; mashed potatoes; roasted vegetables;
            french fries; onion rings; scrambled eggs; a cheese omelet; pancakes; waffles; French
            toast; oatmeal; granola; banana bread; cornbread; garlic bread; blueberry muffins;
            scones; biscuits; a grilled cheese sandwich; a club sandwich; a veggie burger; a
            hamburger; hot dogs; tacos; burritos; quesadillas; nachos; guacamole; salsa; hummus;
            falafel; a lentil curry; a chicken curry; butter chicken; pad thai; spring rolls;
            dumplings; ramen; miso soup; teriyaki salmon; fish and chips; shrimp scampi; clam
            chowder; crab cakes; roast chicken; fried chicken; meatloaf; pulled pork; barbecue ribs;
            stuffed peppers; ratatouille; quiche; shepherd's pie; apple pie; pumpkin pie;
            cheesecake; chocolate cake; carrot cake; brownies; chocolate chip cookies; oatmeal
            cookies; gingerbread; rice pudding; tiramisu; ice cream; lemon sorbet; strawberry jam;
            lemonade; hot chocolate; a berry smoothie; iced tea
        """),
    ),
    Kind(
        "animals",
        (
            "What do {} eat?",
            "Where do {} live?",
            "Tell me three facts about {}.",
            "How do {} protect themselves from danger?",
            "Describe {} in two or three sentences for a children's book.",
            "How do {} take care of their young?",
        ),
        _items("""
            elephants; lions; tigers; leopards; cheetahs; wolves; foxes; brown bears; polar bears;
            giant pandas; koalas; kangaroos; wombats; platypuses; hedgehogs; porcupines; skunks;
            raccoons; beavers; otters; squirrels; rabbits; hares; mice; rats; bats; moles; deer;
            moose; reindeer; bison; camels; llamas; giraffes; zebras; hippos; rhinos; gorillas;
            chimpanzees; orangutans; lemurs; sloths; anteaters; armadillos; meerkats; hyenas; wild
            boars; horses; donkeys; cows; sheep; goats; pigs; chickens; ducks; geese; swans;
            turkeys; peacocks; eagles; falcons; owls; crows; parrots; hummingbirds; woodpeckers;
            penguins; pelicans; flamingos; ostriches; sea turtles; tortoises; crocodiles;
            chameleons; geckos; rattlesnakes; cobras; frogs; toads; salamanders; salmon; sharks;
            stingrays; seahorses; whales; dolphins; seals; walruses; octopuses; jellyfish; crabs;
            lobsters; snails; spiders; scorpions; honeybees; ants; butterflies; dragonflies;
            ladybugs
        """),
    ),
    Kind(
        "science",
        (
            "What is {}?",
            "Explain {} to a ten-year-old.",
            "Why is {} important to know about?",
            "I have a science quiz tomorrow. Help me understand {}.",
            "What do people often get wrong about {}?",
            "Sum up {} in two sentences.",
        ),
        _items("""
            gravity; friction; inertia; momentum; kinetic energy; potential energy; electricity;
            magnetism; static electricity; an electric circuit; a semiconductor; a laser; sound; the
            Doppler effect; the speed of light; refraction; a mirage; heat transfer; air pressure;
            buoyancy; surface tension; evaporation; condensation; the water cycle; the carbon cycle;
            the greenhouse effect; climate change; the ozone layer; acid rain; erosion; a volcano;
            an earthquake; a tsunami; a hurricane; a tornado; lightning; high tide; an ocean
            current; plate tectonics; the rock cycle; a fossil; the Big Bang; a black hole; a
            supernova; a comet; an asteroid; a galaxy; the solar system; the lunar cycle; a solar
            flare; relativity; quantum mechanics; an atom; an electron; a molecule; a chemical bond;
            the periodic table; oxidation; an acid; a catalyst; crystallization; osmosis; diffusion;
            photosynthesis; cellular respiration; a cell; DNA; a gene; a chromosome; a mutation;
            natural selection; evolution; an ecosystem; a food chain; symbiosis; biodiversity;
            pollination; hibernation; migration; metamorphosis; camouflage; the immune system; a
            vaccine; a virus; an antibiotic; the nervous system; digestion; blood circulation;
            metabolism; a hormone; a placebo; the scientific method; probability; a prime number;
            the Pythagorean theorem; radioactivity; nuclear fusion; renewable energy
        """),
    ),
    Kind(
        "programming",
        (
            "Write a Python function to {}.",
            "Show me how to {} in JavaScript.",
            "Explain, without code, how a program could {}.",
            "I'm new to coding. What is an easy way to {}?",
        ),
        _items("""
            reverse a string; check whether a word is a palindrome; count the vowels in a sentence;
            find the largest number in a list; find the smallest number in a list; add up a list of
            numbers; compute the average of a list; compute the median of a list; sort a list of
            names; remove duplicates from a list; merge two sorted lists; flatten a nested list;
            rotate a list by one position; find the second largest number in a list; check whether a
            number is even; check whether a number is prime; list the first ten primes; compute a
            factorial; compute a Fibonacci number; find the greatest common divisor of two numbers;
            convert a number to binary; convert Celsius to Fahrenheit; convert miles to kilometers;
            round a number to two decimals; generate a random number; roll two dice; flip a coin;
            pick a random item from a list; shuffle a list; count the words in a text; count how
            often each letter appears; find the longest word in a sentence; capitalize every word in
            a sentence; replace spaces with dashes; split a line at commas; join a list of words;
            remove punctuation from a text; check whether two words are anagrams; encode a message
            with a Caesar cipher; validate an email address; check the strength of a password; read
            a text file; write a line to a file; read a CSV file; parse a JSON string; list the
            files in a folder; get the current date; compute the days between two dates; check
            whether a year is a leap year; print a multiplication table; print a triangle of stars;
            play FizzBuzz; guess a secret number; keep score in a game; make a to-do list; store
            phone numbers by name; look up a value in a dictionary; invert a dictionary; multiply
            two matrices; transpose a matrix; compute the area of a circle; compute the distance
            between two points; solve a quadratic equation; do a binary search; do a bubble sort;
            use a stack; use a queue; build a linked list; walk through a binary tree; handle an
            error when a file is missing; time how long a loop takes; cache the result of a
            function; download a web page; call a web API; draw a square on the screen; set a timer
        """),
    ),
    Kind(
        "stories",
        (
            "Write a very short story about {}.",
            "Write a four-line poem about {}.",
            "Write the opening paragraph of a novel about {}.",
            "Suggest a title and a one-sentence plot for a film about {}.",
            "Tell me a bedtime story about {}.",
        ),
        _items("""
            a lost kitten; a brave little mouse; a dragon who is afraid of fire; a talking tree; a
            robot who wants to dance; a lonely lighthouse keeper; two sisters and a secret garden; a
            boy who finds a magic key; a girl who can talk to birds; a wizard who lost his hat; a
            princess who builds machines; a knight without a horse; a thief with a good heart; a
            ghost who likes to cook; a family of mermaids; a clumsy giant; a sleepy owl; a fox and a
            crow; a turtle who wins a race; a bear who cannot sleep; an old wooden boat; a letter
            that arrives fifty years late; a clock that runs backward; a house that moves at night;
            a painting that changes every day; a door in the middle of the forest; a village under
            the sea; a city in the clouds; a train that never stops; a journey across the desert;
            the last library on Earth; the first child born on Mars; an astronaut far from home; a
            friendly alien; a scientist who shrinks herself; a time traveler in ancient Egypt; a
            detective and a missing necklace; a spy who tells the truth; a baker with a magic oven;
            a toy maker and his puppet; a young violinist; a painter who sees only blue; a fisherman
            and a golden fish; a farmer and a talking scarecrow; a storm on the sea; a long winter
            in the mountains; a summer by the lake; an autumn leaf; the first snow of the year; a
            full moon; a small seed; a river looking for the ocean; a lucky penny; a broken mirror;
            a forgotten birthday; a surprise visit; a promise between friends; a race through the
            city; a treasure map; a haunted hotel; a school for heroes; a grandfather and his old
            radio; a stray dog who finds a home; an unlikely friendship; a musician who lost her
            voice; a king who gave away his crown; a queen and her gardener; a shy young wolf; a
            cloud that would not rain; a star that fell into a pond
        """),
    ),
    Kind(
        "letters",
        (
            "Write a short email {}.",
            "Help me write a friendly letter {}.",
            "Draft a brief and polite note {}.",
            "Give me a good first sentence for a message {}.",
        ),
        _items("""
            to my boss asking for a day off; to my boss asking for a raise; to my teacher about a
            late essay; to a professor asking for a meeting; to my landlord about a broken heater;
            to a hotel asking about a room for two nights; to a restaurant to book a table for six;
            to an airline about lost luggage; to a shop about a damaged lamp; to a bank about a lost
            card; to a customer about a delayed order; to a client to set up a phone call; to my
            team about a new deadline; to a coworker who is leaving the company; to a new colleague
            to welcome them; to a friend I have not seen in years; to a friend who is in the
            hospital; to a friend to invite them to a picnic; to my grandparents about my new
            school; to my aunt to thank her for a scarf; to my parents from summer camp; to a pen
            pal in another country; to a neighbor about a noisy dog; to a neighbor asking them to
            water my plants; to the city about a broken streetlight; to the mayor about a new
            playground; to a newspaper about traffic near the school; to a gym to cancel my
            membership; to a phone company about a wrong bill; to a doctor's office to move an
            appointment; to a school to ask about music lessons; to a charity to offer my help; to a
            museum about a group visit; to a company asking for an internship; to a recruiter to
            thank them for an interview; to turn down a job offer; to accept a job offer; to resign
            from my job; to apologize for missing a meeting; to apologize for a rude remark; to
            invite my class to a birthday party; to congratulate a friend on a new baby; to
            congratulate my cousin on graduating; to comfort someone who lost a pet; to remind the
            members of our book club about Friday; to thank a teacher at the end of the year; to ask
            a writer a question about a book; to ask a friend to feed my rabbit; to my future self;
            to Santa Claus
        """),
    ),
    Kind(
        "comparisons",
        (
            "What is the difference between {}?",
            "Compare {} in a few sentences.",
            "Make a short list of similarities between {}.",
            "How would you explain to a friend how {} differ?",
        ),
        _items("""
            butter and margarine; tea and juice; brown rice and white rice; a bagel and a croissant;
            jam and jelly; baking soda and baking powder; yogurt and sour cream; honey and maple
            syrup; olive oil and coconut oil; red wine and white wine; a gas stove and an electric
            stove; a house and an apartment; renting a home and buying a home; a town and a village;
            living in a city and living in the countryside; a bus and a tram; a car and a van; a
            mountain bike and a road bike; a hotel and a hostel; a beach holiday and a ski trip; a
            lake and a sea; a hill and a mountain; a forest and a jungle; spring and fall; a turtle
            and a tortoise; an alligator and a crocodile; a crow and a raven; a moth and a
            butterfly; a donkey and a mule; a dog and a wolf; a gerbil and a hamster; a novel and a
            short story; fiction and nonfiction; a paper book and an e-book; a newspaper and a
            magazine; an opera and a musical; jazz and blues; a guitar and a banjo; a violin and a
            cello; a movie and a play; running and walking; yoga and pilates; tennis and badminton;
            rugby and American football; a laptop and a desktop computer; a phone call and a text
            message; an email and a letter; a list and a tuple in Python; a compiler and an
            interpreter; hardware and software; the internet and the World Wide Web; a debit card
            and a credit card; stocks and bonds; a leader and a manager; a college and a university;
            a simile and a metaphor; mass and weight; speed and velocity; weather and climate; a
            virus and a bacterium
        """),
    ),
    Kind(
        "words",
        (
            "What does the word '{}' mean?",
            "Use the word '{}' in three different sentences.",
            "Give me some synonyms for '{}' and say how they differ.",
            "What is the opposite of '{}', and when would I use each word?",
        ),
        _items("""
            resilient; generous; humble; curious; stubborn; reluctant; ambitious; cautious;
            diligent; eloquent; frugal; genuine; hesitant; impartial; jovial; keen; lenient;
            meticulous; naive; obvious; patient; quaint; rational; sincere; tedious; urgent; vague;
            weary; zealous; abundant; ancient; awkward; bitter; brisk; candid; casual; clumsy;
            complex; confident; courteous; cruel; dense; dull; eager; elegant; fragile; frantic;
            gentle; gloomy; grateful; harsh; hollow; hostile; idle; immense; innocent; intense;
            lively; loyal; mature; mild; modest; mysterious; narrow; neat; noble; obedient; odd;
            optimistic; peculiar; permanent; plain; precise; private; rapid; rare; reckless; rigid;
            rough; scarce; serene; severe; shallow; sensible; solemn; stable; subtle; temporary;
            tender; timid; tranquil; trivial; vivid; wise
        """),
    ),
    Kind(
        "hobbies",
        (
            "Do you like {}?",
            "I spent the whole weekend {}. Ask me something about it.",
            "Why do so many people enjoy {}?",
            "Name a few benefits of {}.",
            "A friend of mine thinks {} is boring. How can I change her mind?",
        ),
        _items("""
            reading; gardening; hiking; cycling; fishing; camping; birdwatching; stargazing;
            swimming; surfing; sailing; rowing; scuba diving; rock climbing; skiing; ice skating;
            jogging; playing tennis; playing golf; playing basketball; playing volleyball; bowling;
            playing table tennis; practicing karate; dancing; singing in a choir; playing the drums;
            playing the piano; listening to jazz; going to concerts; painting; drawing comics;
            sculpting; doing pottery; making jewelry; quilting; embroidery; woodworking; building
            model trains; collecting stamps; collecting coins; collecting vinyl records; taking
            photographs; making short films; watching old movies; watching documentaries; writing
            poetry; writing short stories; journaling; blogging; solving puzzles; playing board
            games; playing video games; playing card games; baking; cooking for friends; visiting
            museums; traveling by train; learning languages; volunteering; researching family
            history; flying kites; beekeeping
        """),
    ),
    Kind(
        "sums",
        (
            "What is {}?",
            "Show me step by step how to work out {}.",
            "Make up a short word problem that asks for {}.",
        ),
        _SUMS,
    ),
    Kind(
        "tips",
        (
            "Give me five tips for {}.",
            "What helps most with {}?",
            "Make a short checklist for {}.",
            "Give me one do and one don't for {}.",
        ),
        _items("""
            saving money on groceries; saving energy at home; using less plastic; reducing food
            waste; keeping a kitchen clean; organizing a closet; cleaning windows; doing laundry;
            removing stains from clothes; moving to a new apartment; decorating a small bedroom;
            setting up a home office; working from home; managing time; staying focused; preparing
            for an exam; studying in a group; writing an essay; giving a presentation; preparing for
            a job interview; working in a team; leading a team; giving feedback; dealing with
            difficult customers; starting a small business; selling things online; making a first
            website; staying safe online; protecting personal data; taking care of houseplants;
            starting a vegetable garden; adopting a dog; traveling with a pet; traveling alone;
            traveling with children; flying for the first time; packing light; going on a long
            drive; driving in snow; camping in the rain; hiking in the mountains; staying healthy in
            winter; drinking more water; eating more vegetables; cooking on a budget; planning meals
            for a week; sleeping better; reducing stress; building a morning routine; breaking a bad
            habit; building muscle; training for a marathon; recovering from a cold; protecting skin
            from the sun; taking care of teeth; raising a teenager; teaching kids to read; hosting a
            dinner party; planning a birthday party; choosing a present; making new friends; being a
            good listener; resolving a conflict; saying sorry; learning vocabulary; remembering
            names; becoming a better writer; taking portraits; buying a used car; planning for
            retirement
        """),
    ),
    Kind(
        "summaries",
        (
            "Summarize {} in three sentences.",
            "What can we learn from {}?",
            "I know nothing about {}. What are the main points?",
            "Write two quiz questions about {} and give the answers.",
        ),
        _items("""
            the story of Cinderella; the story of Snow White; the story of Little Red Riding Hood;
            the story of Hansel and Gretel; the story of Pinocchio; the story of Peter Pan; the tale
            of the three little pigs; the tale of the ugly duckling; the myth of Icarus; the myth of
            King Midas; the legend of King Arthur; the legend of Robin Hood; the Trojan War; the
            Odyssey; Romeo and Juliet; Hamlet; Macbeth; Don Quixote; Moby Dick; Frankenstein;
            Robinson Crusoe; Treasure Island; Alice in Wonderland; Pride and Prejudice; A Christmas
            Carol; the building of the pyramids; the rise of the Roman Empire; the fall of the Roman
            Empire; the Middle Ages; the Black Death; the Renaissance; the voyages of Columbus; the
            invention of the printing press; the Industrial Revolution; the French Revolution; the
            American Revolution; the American Civil War; the California gold rush; the sinking of
            the Titanic; the First World War; the Great Depression; the Second World War; the Cold
            War; the race to the moon; the fall of the Berlin Wall; the civil rights movement; the
            history of the Olympic Games; the history of chocolate; the history of money; the
            history of the telephone; the history of aviation; the history of the railroads; the
            history of cinema; the history of the computer; the history of writing; the discovery of
            penicillin; the life of Leonardo da Vinci; the life of Mozart; the life of Marie Curie;
            the life of Albert Einstein; the life of Nelson Mandela
        """),
    ),
)

HELD_OUT: tuple[str, ...] = (
    "My sourdough starter smells like nail polish remover, did I kill it?",
    "why do onions make people cry when somebody slices them",
    "Which US president had the shortest time in office, and what happened to him?",
    "Is it true that goldfish forget everything within seconds?",
    "Got a clean joke about a snowman that grandma would laugh at?",
    'Rewrite this so it sounds polite: "Send me the invoice today or else."',
    'Turn "The committee approved the proposal" into the passive voice.',
    "A ferry leaves at 2:15 pm and the crossing takes 3 hours 50 minutes. When does it arrive?",
    "Three people split a 48 dollar restaurant check and add 20%; how much does each one pay?",
    "Correct the spelling: I definately recieved teh package yestarday.",
    "Think of a few names for a tiny stall that only sells cinnamon rolls.",
    "In Excel, which formula adds only the cells bigger than zero?",
    "what's a haiku, and could I see one with fog in it?",
    "Pretend you're a pirate ordering lunch at a drive-through.",
    "Our wifi keeps dropping every evening around eight; any idea what's going on?",
    "Fill in the blank: The referee blew her ____ and the match was over.",
    "Who painted the Mona Lisa, and where is it hanging these days?",
    "Put these in alphabetical order: mango, cherry, apricot, plum, fig.",
    "Is 'Me and him went home' grammatically right? Fix it if not.",
    "My toddler refuses to wear shoes outside and screams when I try, help!",
    "Convert 72 inches to feet and then to centimeters.",
    "How many sides has an octagon got, and what's a shape with ten called?",
    "Any reason my knee cracks whenever I get up from the couch?",
    "Invent a superhero whose only power is finding lost socks.",
    "What actually makes popcorn kernels pop?",
    "Sort these into living and not living: moss, granite, yeast, a campus statue, bamboo.",
    "I ate my roommate's leftover lasagna. Could you word an apology text from me?",
    "Do customers normally leave gratuities at cafes in Iceland?",
    "I keep hearing people say 'bite the bullet'. Where does that come from?",
    "Headline for this, please: The town council will open the pool on Sundays from March after "
    "residents collected 900 signatures.",
    "Shorten to one line: Tuesday's workshop was moved to Thursday because the projector broke and "
    "nobody on site could fix it.",
    "Positive or negative review? 'The headphones broke after two days and support never called "
    "back.'",
    "Which is heavier, a kilogram of feathers or a kilogram of steel?",
    "how come the sky turns orange at sunset",
    "Plan a rainy Saturday for twins aged seven, indoors and with no spending.",
    "List every month that has exactly thirty days.",
    "Does anything rhyme with 'silver'? If not, what comes close?",
    "I'm watching my first soccer match. When exactly is a striker offside?",
    "Good morning! Did you sleep well, or do chatbots not do that?",
    "In SQL, when would somebody reach for a LEFT JOIN?",
    "My regex \\d+ also matches 007, is that expected?",
    "Somebody told me window glass is a slow liquid. True?",
    "Finish the limerick: There once was a clerk from Peru...",
    "Need a toast for my sister's wedding, two or three lines, warm but not cheesy.",
    "Which recycling bin do greasy pizza boxes belong in?",
    "Extract the date and the city: 'On 4 June 1998 the delegation landed in Nairobi.'",
    "Who was Ada Lovelace, and why is she remembered?",
    "Continue the pattern and name the rule: 2, 6, 18, 54, ...",
)


def training_prompts() -> list[str]:
    """Fills every template with every subject of its kind.

    Returns:
        All distinct training prompts, in an order that is the same in every run.
    """
    prompts = {
        template.format(subject): None
        for kind in KINDS
        for template in kind.templates
        for subject in kind.subjects
    }
    shuffled = list(prompts)
    random.Random(0).shuffle(shuffled)
    return shuffled


def held_out_prompts() -> list[str]:
    """Returns the held-out prompts, in their written order."""
    return list(HELD_OUT)
