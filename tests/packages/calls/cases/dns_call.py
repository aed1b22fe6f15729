# requires: dnspython idna
import dns.message
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.zone


def run(value):
    said = [
        dns.rdata.from_text("IN", kind, text).to_text()
        for kind, text in (("MX", "10 mail.example."), ("A", "1.2.3.4"), ("SVCB", "1 . alpn=h2"))
    ]
    zone = dns.zone.from_text("@ 3600 IN SOA a. b. 1 2 3 4 5\n@ IN NS a.\nwww IN AAAA ::1\n", origin="example.")
    return [*said, len(zone.nodes), dns.message.make_query("example.", "TXT").to_text().splitlines()[1:]]
