# requires: faker
from faker import Faker


def run(value):
    Faker.seed(7)
    said = []
    for locale in ("en_US", "de_DE", "ja_JP"):
        fake = Faker(locale)
        said.append([fake.name(), fake.address(), fake.company()])
    return said
