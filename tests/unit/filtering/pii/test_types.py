"""Every type of sensitive entity: what it is (between ⟦ and ⟧), near misses, and wrong check digits.

All values are made up, or the examples that the authorities themselves publish.
"""

from __future__ import annotations

import re

import pytest

from llmctl.filtering.pii.catalogue import entities, type_names
from llmctl.filtering.pii.detect import detector

LONG = "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC2eF4hJ6kL8nP0rS2uV4xY6z"
B58 = "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC2eF4hJ6kL8nPrS2uV4xY6z"
LOWER_HEX = "0123456789abcdef0123456789abcdef0123456789abcdef"
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

FOUND: dict[str, list[str]] = {
    "email": ["Write to ⟦jane.o'neil+news@mail.example.co.uk⟧.", "联系⟦a_b@example.com⟧。", "<⟦x@y.org⟧>"],
    "phone_cn": ["手机⟦13812345678⟧，", "拨打 ⟦010-62345678⟧ 转", "⟦+86 138-1234-5678⟧"],
    "phone_us": ["call ⟦(415) 555-0132⟧ now", "⟦1-800-232-4636⟧", "⟦415.555.0132⟧"],
    "phone": ["⟦+49 30 901820⟧", "Tel.: ⟦030 / 90 18 20⟧", "telephone ⟦555 0199⟧",
        "⟦+33 1 23 45 67 89⟧,",
        "电话：⟦88776655⟧"],
    "messenger_account": ["QQ：⟦123456789⟧", "微信号：⟦wxid_abc123⟧"],
    "payment_card": ["card ⟦4111 1111 1111 1111⟧ ok", "⟦5555555555554444⟧", "⟦3782-822463-10005⟧",
        "卡⟦6200000000000005⟧"],
    "iban": ["to ⟦GB82 WEST 1234 5698 7654 32⟧ AND SO ON", "⟦DE89370400440532013000⟧", "⟦NO9386011117947⟧."],
    "bank_identifier": ["BIC: ⟦DEUTDEFF500⟧", "SWIFT code ⟦NEDSZAJJ⟧"],
    "us_routing_number": ["routing number ⟦021000021⟧"],
    "bank_account": ["Account number: ⟦000123456789⟧", "账号：⟦1234 5678 9012 3456⟧"],
    "card_security_code": ["CVV: ⟦123⟧", "安全码为⟦4321⟧"],
    "bitcoin_address": ["⟦1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa⟧", "⟦bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4⟧",
        "⟦3J98t1WpEZ73CNmQviecrnyiWrnqRhWNLy⟧"],
    "ethereum_address": ["⟦0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed⟧",
        "⟦0xde709f2102306220921060314715629080e2fb77⟧"],
    "litecoin_address": ["⟦LVg2kJoFNg45Nbpy53h7Fe1wKyeXVRhMH9⟧"],
    "tron_address": ["⟦TJCnKsPa7y5okkXvQAidZBzqx3QyQ6sxMW⟧"],
    "crypto_private_key": ["⟦5HueCGU8rMjxEXxiPuD5BDku4MkFqeZyd4dZ1jvhTVqvbTLvyTJ⟧"],
    "ipv4": ["from ⟦192.168.10.7⟧, port", "在⟦8.8.4.4⟧上"],
    "ipv6": ["⟦2001:db8::ff00:42:8329⟧", "[⟦2001:0db8:0000:0000:0000:ff00:0042:8329⟧]"],
    "mac_address": ["⟦00:1A:2B:3C:4D:5E⟧", "⟦00-1a-2b-3c-4d-5e⟧", "⟦001a.2b3c.4d5e⟧"],
    "imei": ["IMEI: ⟦49-015420-323751-8⟧"],
    "coordinates": ["at ⟦52.52001, 13.40495⟧.", "⟦52°31'12\"N 13°24'18\"E⟧"],
    "url_credentials": ["⟦postgres://app:s3cr3t@db.example.org⟧/x", "⟦https://user:pa55@host.example⟧"],
    "private_key": [
        "⟦-----BEGIN RSA PRIVATE KEY-----\nMIIBOgIBAAJBAK\n-----END RSA PRIVATE KEY-----⟧ end",
        "⟦-----BEGIN OPENSSH PRIVATE KEY-----⟧\n cut",
    ],
    "aws_access_key": [f"⟦AKIA{'IOSFODNN7EXAMPLE'}⟧"],
    "aws_secret_key": [f"aws_secret_access_key = ⟦{'wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY'}⟧"],
    "github_token": [f"⟦ghp_{LONG[:36]}⟧", f"⟦github_pat_{LONG[:22]}_{(LONG + LONG)[:59]}⟧"],
    "gitlab_token": [f"⟦glpat-{LONG[:20]}⟧"],
    "slack_token": [f"⟦xoxb-123456789012-123456789012-{LONG[:24]}⟧",
        f"⟦https://hooks.slack.com/services/T0000AAAA/B0000AAAA/{LONG[:24]}⟧"],
    "stripe_key": [f"⟦sk_live_{LONG[:24]}⟧", f"⟦rk_test_{LONG[:30]}⟧"],
    "google_api_key": [f"⟦AIza{LONG[:35]}⟧"],
    "llm_api_key": [f"⟦sk-{LONG[:48]}⟧", f"⟦sk-ant-api03-{LONG[:40]}⟧", f"⟦hf_{LETTERS[:34]}⟧"],
    "vendor_token": [f"⟦npm_{LONG[:36]}⟧", f"⟦SG.{LONG[:22]}.{LONG[:43]}⟧", f"⟦123456789:AA{LONG[:33]}⟧"],
    "jwt": ["⟦eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U⟧"],
    "password": ["password: ⟦hunter22x⟧", "密码：⟦abc12345⟧"],
    "secret": [f"api_key = '⟦{LONG[:32]}⟧'", f"Authorization: Bearer ⟦{LONG[:40]}⟧"],
    "cn_resident_id": ["身份证号⟦11010519491231002X⟧。", "身份证：⟦110105491231002⟧"],
    "cn_company_code": ["统一社会信用代码⟦91110000600037341L⟧"],
    "hk_identity_card": ["⟦A123456(3)⟧", "HKID ⟦A1234563⟧"],
    "tw_identity_card": ["⟦A123456789⟧"],
    "kr_resident_id": ["⟦900101-1234568⟧"],
    "jp_my_number": ["マイナンバー：⟦1234 5678 9018⟧"],
    "sg_nric": ["⟦S1234567D⟧", "⟦T1234567J⟧"],
    "in_aadhaar": ["⟦2341 2341 2346⟧", "Aadhaar: ⟦234123412346⟧"],
    "in_pan": ["⟦ACUPA7085R⟧"],
    "au_tfn": ["TFN ⟦123 456 782⟧"],
    "au_medicare": ["Medicare no. ⟦2123 45670 1⟧"],
    "il_identity_number": ["תעודת זהות ⟦039337423⟧"],
    "tr_identity_number": ["T.C. Kimlik No: ⟦17291716060⟧"],
    "us_ssn": ["⟦536-90-4399⟧", "SSN ⟦536904399⟧"],
    "us_itin": ["⟦912-90-3456⟧"],
    "us_ein": ["EIN: ⟦91-1144442⟧"],
    "us_drivers_licence": ["driver's license: ⟦D12345678⟧"],
    "ca_sin": ["SIN ⟦123-456-782⟧"],
    "br_cpf": ["⟦390.533.447-05⟧", "CPF: ⟦39053344705⟧"],
    "br_cnpj": ["⟦16.727.230/0001-97⟧", "CNPJ ⟦16727230000197⟧"],
    "mx_curp": ["⟦BOXW310820HNERXN09⟧"],
    "cl_rut": ["⟦12.531.909-2⟧", "RUT: ⟦12531909-2⟧"],
    "ar_cuit": ["⟦20-05536168-2⟧"],
    "za_identity_number": ["ID number: ⟦7503305044089⟧"],
    "uk_nino": ["⟦AB 12 34 56 C⟧", "⟦JG121316A⟧"],
    "uk_nhs_number": ["NHS number: ⟦943 476 5919⟧"],
    "de_tax_id": ["Steuer-ID: ⟦86 095 742 719⟧", "IdNr. ⟦86095742719⟧"],
    "fr_nir": ["⟦2 55 08 14 168 025 38⟧", "⟦255081416802538⟧"],
    "es_dni": ["DNI ⟦12345678Z⟧"],
    "es_nie": ["NIE ⟦X1234567L⟧", "⟦Y-1234567-X⟧"],
    "it_codice_fiscale": ["⟦RCCMNL83S18D969H⟧"],
    "pl_pesel": ["PESEL: ⟦44051401359⟧"],
    "nl_bsn": ["BSN ⟦111222333⟧", "burgerservicenummer: ⟦1112.22.333⟧"],
    "se_personnummer": ["⟦811228-9874⟧", "personnummer ⟦198112289874⟧"],
    "fi_hetu": ["⟦131052-308T⟧", "⟦131052A308T⟧"],
    "no_fodselsnummer": ["⟦151086 95088⟧", "fødselsnummer: ⟦15108695088⟧"],
    "dk_cpr": ["CPR-nr. ⟦211062-5629⟧"],
    "be_national_number": ["⟦85.07.30-033.28⟧", "rijksregisternummer ⟦85073003328⟧"],
    "pt_nif": ["NIF: ⟦501 964 843⟧"],
    "ch_ahv": ["⟦756.9217.0769.85⟧"],
    "ro_cnp": ["CNP: ⟦1630615123457⟧"],
    "passport": ["Passport No.: ⟦E12345678⟧", "护照号码为⟦G87654321⟧", "Reisepass ⟦C01X0006H⟧"],
    "passport_mrz": ["⟦L898902C36UTO7408122F1204159ZE184226B<<<<<10⟧"],
    "medical_record": ["MRN: ⟦00123456⟧", "病历号：⟦2023001234⟧"],
    "member_number": ["Employee ID: ⟦E-12345⟧", "工号 ⟦20231234⟧"],
    "vin": ["⟦1M8GDM9AXKP042788⟧", "VIN: ⟦WVWZZZ1JZXW000001⟧"],
    "licence_plate": ["驾驶⟦京A·12345⟧小型", "⟦粤BD12345⟧", "Kennzeichen: ⟦B-MW 1234⟧", "license plate ⟦7ABC123⟧"],
    "case_number": [
        "⟦（2023）京0105民初12345号⟧",
        "⟦(2019)最高法民终123号⟧",
        "Case ⟦1:20-cv-01234-ABC⟧",
        "⟦[2020] UKSC 12⟧",
        "Case ⟦C-311/18⟧",
        "⟦ECLI:EU:C:2020:559⟧",
        "Docket No. ⟦21-CV-1234⟧",
    ],
    "legal_party": ["原告：⟦张三⟧，男", "被告⟦李四⟧，女", "被告：⟦北京某某科技有限公司⟧。",
        "the Plaintiff, ⟦John Q. Smith⟧", "in ⟦Doe⟧ v. ⟦Smith⟧"],
    "date_of_birth": ["born on ⟦3 November 1933⟧", "DOB: ⟦1985-03-02⟧", "出生日期：⟦1985年3月2日⟧",
        "⟦1990年12月31日⟧出生", "born ⟦May 4, 1970⟧"],
    "person_name": ["Mr. ⟦John Smith⟧ said", "Name: ⟦Mary Ann Jones⟧", "姓名：⟦王小明⟧"],
    "postal_address": [
        "住⟦北京市朝阳区建国路88号院3号楼101室⟧。",
        "住所地：⟦杭州市西湖区文三路100号⟧",
        "at ⟦1600 Pennsylvania Avenue⟧.",
        "⟦Hauptstraße 12⟧ in",
        "⟦P.O. Box 1234⟧",
    ],
}  # fmt: skip

MISSED: dict[str, list[str]] = {
    "email": ["icon@2x.png", "user@localhost", "@decorator.name", "x@y.c"],
    "phone_cn": ["138123456789012", "12812345678", "1.13812345678", "订单20231381234567"],
    "phone_us": ["415-911-0132x", "115-555-0132", "1.415.555.0132.7", "2023-555-0132-11"],
    "phone": ["+999 123 456 789", "+12 3", "-+0123456789", "call me at noon"],
    "messenger_account": ["the QQ plot of 12", "wechat is an app"],
    "payment_card": ["9111 1111 1111 1111", "4111 1111-1111 1111", "0.4111111111111111", "41111111111111112345678"],
    "iban": ["ZZ82WEST12345698765432", "GB82 WEST 1234 5698 7654", "XGB82WEST12345698765432"],
    "bank_identifier": ["DEUTDEFF500 without a label", "a BIC pen"],
    "us_routing_number": ["021000021 alone"],
    "bank_account": ["the account number of users", "account 12"],
    "card_security_code": ["CVV is three digits", "CVV 12"],
    "bitcoin_address": ["bc1 is a prefix", B58[:34]],
    "ethereum_address": ["0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAe", "0x" + "0" * 40],
    "litecoin_address": ["L" + B58[:33]],
    "tron_address": ["T" + B58[:33]],
    "crypto_private_key": ["5" + B58[:50]],
    "ipv4": ["version 1.2.3", "section 6.2.4.1", "2.5.29.14",
        "1.2.3.4.5", "256.1.1.1", "127.0.0.1", "255.255.255.0", "0.0.0.0", "01.2.3.4"],
    "ipv6": ["std::vector", "::1", "at 12:30:45", "a::b"],
    "mac_address": ["00:00:00:00:00:00", "12:30:45", "00:1A:2B:3C:4D"],
    "imei": ["49-015420-323751-8 without a label"],
    "coordinates": ["1.5, 2.5", "pi 3.14159 and 2.71828", "95.12345, 13.12345", "20°C"],
    "url_credentials": ["https://host.example:8080/a", "git@host.example:repo", "https://a/b:c@d"],
    "private_key": ["-----BEGIN PUBLIC KEY-----", "the PRIVATE KEY is secret"],
    "aws_access_key": ["AKIA", "XAKIAIOSFODNN7EXAMPLE", "AKIAAAAAAAAAAAAAAAAA"],
    "aws_secret_key": ["aws_secret_access_key = YOUR_KEY"],
    "github_token": ["ghp_short", "xghp_" + LONG[:36]],
    "gitlab_token": ["glpat-short"],
    "slack_token": ["xoxb-", "xoxb-token"],
    "stripe_key": ["sk_live_short", "risk_test_" + "a" * 24],
    "google_api_key": ["AIza", "AIza" + "a" * 35],
    "llm_api_key": ["task-" + LONG[:32], "sk-learn", "hf_hub"],
    "vendor_token": ["npm_config", "SG.", "key-value"],
    "jwt": ["eyJ.eyJ.x", "eyJhYmMi.eyJhYmMi.abcdefgh"],
    "password": ["password: str", "password = None", "password: changeme1", "enter your password"],
    "secret": ["api_key = os.environ", "token: aaaaaaaaaaaaaaaaaaaa", "Bearer of bad news everyone"],
    "cn_resident_id": ["11010519491331002X", "99010519491231002X", "110105194912310021234"],
    "cn_company_code": ["91110000600037341M", "123456789012345678"],
    "hk_identity_card": ["A12345(3)", "A123456"],
    "tw_identity_card": ["A323456789", "AA123456789"],
    "kr_resident_id": ["901301-1234568", "900101-9234568"],
    "jp_my_number": ["1234 5678 9018"],
    "sg_nric": ["A1234567D", "S123456D"],
    "in_aadhaar": ["1341 2341 2346", "2341 2341 234"],
    "in_pan": ["ACUXA7085R", "ACUPA0000R"],
    "au_tfn": ["123 456 782"],
    "au_medicare": ["Medicare 9123 45670 1"],
    "il_identity_number": ["039337423"],
    "tr_identity_number": ["17291716060"],
    "us_ssn": ["000-12-3456", "666-12-3456", "900-12-3456", "536-00-4399", "536-90-0000", "2536-90-43991"],
    "us_itin": ["912-93-3456", "912-12-3456"],
    "us_ein": ["91-1144442", "ein 12"],
    "us_drivers_licence": ["driver's license required"],
    "ca_sin": ["123-456-782", "SIN 023-456-782"],
    "br_cpf": ["111.111.111-11"],
    "br_cnpj": ["00.000.000/0000-00"],
    "mx_curp": ["BOXW311320HNERXN09"],
    "cl_rut": ["12.531.909"],
    "ar_cuit": ["21-05536168-2"],
    "za_identity_number": ["7503305044089"],
    "uk_nino": ["BG123456C", "AB123456E", "DA123456A"],
    "uk_nhs_number": ["943 476 5919"],
    "de_tax_id": ["86095742719", "Steuer-ID 12345678901"],
    "fr_nir": ["3 55 08 14 168 025 38"],
    "es_dni": ["1234567Z", "12345678I"],
    "es_nie": ["W1234567L"],
    "it_codice_fiscale": ["RCCMNL83A78D969", "RCCMNL83F18D969H"],
    "pl_pesel": ["44051401359"],
    "nl_bsn": ["111222333", "BSN 000000000"],
    "se_personnummer": ["811328-9874"],
    "fi_hetu": ["131352-308T"],
    "no_fodselsnummer": ["151386 95088"],
    "dk_cpr": ["CPR 321362-5629", "211062-5629"],
    "be_national_number": ["85.07.30-033"],
    "pt_nif": ["501 964 843"],
    "ch_ahv": ["755.9217.0769.85"],
    "ro_cnp": ["1630615123457"],
    "passport": ["a passport photo of 35 mm", "E12345678"],
    "passport_mrz": ["L898902C36UTO7408122F1204159"],
    "medical_record": ["the medical record of a patient"],
    "member_number": ["employee of the month 2023"],
    "vin": ["1M8GDM9AIKP042788", "ABCDEFGHJKLMNPRST", "12345678901234567"],
    "licence_plate": ["京ABCDEFG", "the license plate was clean"],
    "case_number": ["国发〔2019〕5号", "（2018）第3号", "the case of 1:20"],
    "legal_party": ["原告应当提交证据", "被告：应当", "the plaintiff shall"],
    "date_of_birth": ["on 3 November 1933", "born in 1933", "born on 31 February 1990"],
    "person_name": ["Mr. President", "name: string"],
    "postal_address": ["市、县人民政府第三十号令", "in 1990 the street", "the 3 Musketeers"],
}  # fmt: skip

# The last letter or digit of these is a check character: with any other the value is none of that type.
_CHECKED = (
    "payment_card iban us_routing_number bitcoin_address litecoin_address tron_address crypto_private_key imei "
    "cn_company_code tw_identity_card kr_resident_id jp_my_number sg_nric in_aadhaar au_tfn il_identity_number "
    "tr_identity_number ca_sin br_cpf br_cnpj mx_curp cl_rut ar_cuit za_identity_number uk_nhs_number de_tax_id "
    "fr_nir "
    "es_dni es_nie it_codice_fiscale pl_pesel nl_bsn se_personnummer fi_hetu no_fodselsnummer "
    "be_national_number pt_nif "
    "ch_ahv ro_cnp passport_mrz hk_identity_card"
)
CHECKED = _CHECKED.split()


def of_type(text: str, name: str) -> list[str]:
    data = text.encode()
    return [data[found.start : found.end].decode() for found in detector((name,)).find(data)]


def test_the_tables_are_complete() -> None:
    assert set(FOUND) == set(MISSED) == set(type_names())
    assert len(type_names()) >= 37
    families = {entity.name for entity in entities() if entity.confidence == "low"}
    assert families == {
        "messenger_account",
        "password",
        "us_drivers_licence",
        "member_number",
        "legal_party",
        "person_name",
        "postal_address",
    }


@pytest.mark.parametrize("name", type_names())
def test_values_are_found_exactly(name: str) -> None:
    for marked in FOUND[name]:
        expected = re.findall("⟦(.*?)⟧", marked, re.DOTALL)
        text = marked.replace("⟦", "").replace("⟧", "")
        assert of_type(text, name) == expected, marked
        assert name in {found.name for found in detector(type_names()).find(text.encode())}, marked


@pytest.mark.parametrize("name", type_names())
def test_near_misses_are_not_found(name: str) -> None:
    for text in MISSED[name]:
        assert of_type(text, name) == [], text


@pytest.mark.parametrize("name", CHECKED)
def test_a_wrong_check_character_is_no_value(name: str) -> None:
    for marked in FOUND[name]:
        value = re.search("⟦(.*?)⟧", marked).group(1)  # type: ignore[union-attr]
        if name == "cn_resident_id" and len(value) == 15:
            continue
        place = max(position for position, char in enumerate(value) if char.isalnum())
        alphabet = "0123456789" if value[place].isdigit() else "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
        for other in alphabet.replace(value[place].upper(), ""):
            wrong = value[:place] + other + value[place + 1 :]
            text = marked.replace(f"⟦{value}⟧", wrong)
            assert wrong not in of_type(text, name), text


def test_wrong_check_digits_elsewhere() -> None:
    assert of_type("身份证110105194912310021", "cn_resident_id") == []
    assert of_type("0x5aaeb6053F3E94C9b9A09f33669435E7Ef1BeAed", "ethereum_address") == []
    assert of_type("1M8GDM9A1KP042788", "vin") == []
    assert of_type("Medicare no. 2123 45671 1", "au_medicare") == []
    assert of_type("bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t5", "bitcoin_address") == []
