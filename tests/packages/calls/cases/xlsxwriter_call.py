# requires: xlsxwriter
import io
import zipfile

import xlsxwriter


def run(value):
    made = io.BytesIO()
    book = xlsxwriter.Workbook(made, {"in_memory": True})
    sheet = book.add_worksheet()
    sheet.write(0, 0, "a")
    chart = book.add_chart({"type": "line"})
    chart.add_series({"values": "=Sheet1!$A$1:$A$1"})
    sheet.insert_chart("B2", chart)
    book.close()
    return sorted(zipfile.ZipFile(made).namelist())
