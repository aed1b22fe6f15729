# requires: pypdf
import io

from pypdf import PdfReader, PdfWriter


def run(value):
    writer = PdfWriter()
    writer.add_blank_page(width=200, height=100)
    writer.add_metadata({"/Title": "Zprávy"})
    made = io.BytesIO()
    writer.write(made)
    reader = PdfReader(io.BytesIO(made.getvalue()))
    return [len(reader.pages), str(reader.metadata.title), reader.pages[0].extract_text()]
