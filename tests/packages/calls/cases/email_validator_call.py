# requires: email-validator
from email_validator import EmailNotValidError, validate_email


def run(value):
    said = []
    for each in ("jöhn@exämple.de", "no.at", "a@localhost"):
        try:
            said.append(validate_email(each, check_deliverability=False).normalized)
        except EmailNotValidError as error:
            said.append(str(error))
    return said
