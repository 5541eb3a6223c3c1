"""The log's structure; that it is valid was seen once with OASIS's own schema."""

from __future__ import annotations

import json
import random
import re

from hypothesis import given
from hypothesis import strategies as st

from envbuild import sarif
from envbuild.findings import Finding
from envbuild.sarif import RuleText

RULES = [
    RuleText(
        "T001", "shebangs name this prefix", "error", "# T001\n\nEvery script's\nfirst line.\n"
    ),
    RuleText("E002", "run paths stay inside", "warning", ""),
]
SHEBANG = Finding(
    "T001",
    "error",
    "/proj/ada's envs/x/bin/pip",
    "the shebang is another prefix's",
    expected="#!/proj/{env}/bin/python",
    found="#!/tmp/b/bin/python",
    mend="build it again",
)
SCRIPT = Finding("R002", "error", "jobs/a:b.sh:12", "python is called by its bare name")
RUNPATH = Finding("E002", "warning", "lib/x.so", "a run path leads outside", found="/home/b")


def results(*findings: Finding) -> list[dict[str, object]]:
    made: list[dict[str, object]] = sarif.log("0.1.0", RULES, findings, [])["runs"][0]["results"]
    return made


def test_a_log_says_who_made_it() -> None:
    log = sarif.log("0.1.0", RULES, [], [])
    assert log == {
        "$schema": "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/"
        "sarif-schema-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "envbuild",
                        "version": "0.1.0",
                        "rules": [
                            {
                                "id": "E002",
                                "shortDescription": {"text": "run paths stay inside"},
                                "fullDescription": {"text": "run paths stay inside"},
                                "help": {
                                    "text": "run paths stay inside",
                                    "markdown": "run paths stay inside",
                                },
                                "defaultConfiguration": {"level": "warning"},
                            },
                            {
                                "id": "T001",
                                "shortDescription": {"text": "shebangs name this prefix"},
                                "fullDescription": {"text": "Every script's first line."},
                                "help": {
                                    "text": "# T001\n\nEvery script's\nfirst line.",
                                    "markdown": "# T001\n\nEvery script's\nfirst line.",
                                },
                                "defaultConfiguration": {"level": "error"},
                            },
                        ],
                    }
                },
                "invocations": [{"executionSuccessful": True}],
                "results": [],
            }
        ],
    }


def test_a_result_says_all_that_the_finding_does() -> None:
    (result,) = results(SHEBANG)
    fingerprints = result.pop("partialFingerprints")
    assert result == {
        "ruleId": "T001",
        "ruleIndex": 1,
        "level": "error",
        "message": {
            "text": "the shebang is another prefix's\nexpected: #!/proj/{{env}}/bin/python\n"
            "found: #!/tmp/b/bin/python\nmend: build it again"
        },
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": "file:///proj/ada%27s%20envs/x/bin/pip"}
                }
            }
        ],
        "suppressions": [],
    }
    assert isinstance(fingerprints, dict)
    assert list(fingerprints) == ["envbuildFinding/v1"]
    assert re.fullmatch(r"[0-9a-f]{64}:1", fingerprints["envbuildFinding/v1"])


def test_a_line_is_told_from_its_file() -> None:
    (result,) = results(SCRIPT)
    # without the rule's text there is no index of it
    assert "ruleIndex" not in result
    assert result["locations"] == [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": "jobs/a%3Ab.sh"},
                "region": {"startLine": 12},
            }
        }
    ]


def test_names_that_are_no_text_are_written_out() -> None:
    name = b"lib/\xff.so".decode(errors="surrogateescape")
    (result,) = results(Finding("E002", "warning", name, f"{name} is odd"))
    assert result["message"] == {"text": "lib/\\udcff.so is odd"}
    assert "'uri': 'lib/%FF.so'" in str(result["locations"])


def test_what_is_ignored_says_why() -> None:
    log = sarif.log("0.1.0", RULES, [SHEBANG], [(RUNPATH, "the vendor's")])
    ignored, counted = log["runs"][0]["results"]
    assert ignored["ruleId"] == "E002"
    assert ignored["suppressions"] == [{"kind": "external", "justification": "the vendor's"}]
    assert counted["suppressions"] == []


def test_the_order_of_findings_does_not_matter() -> None:
    findings = [
        SHEBANG,
        SCRIPT,
        RUNPATH,
        Finding("R002", "error", "jobs/a:b.sh:9", "python is called by its bare name"),
    ]
    before = json.dumps(sarif.log("0.1.0", RULES, findings, [(RUNPATH, "x")]))
    mixed = random.Random(0).sample(findings, len(findings))
    assert json.dumps(sarif.log("0.1.0", RULES[::-1], mixed, [(RUNPATH, "x")])) == before
    lines = [one["locations"] for one in results(*findings) if one["ruleId"] == "R002"]
    assert re.findall(r"'startLine': (\d+)", str(lines)) == ["9", "12"]


def test_fingerprints_do_not_hang_on_lines() -> None:
    def fingerprints(*lines: int) -> list[object]:
        where = [Finding("R002", "error", f"job.sh:{line}", "bare python") for line in lines]
        return [one["partialFingerprints"] for one in results(*where)]

    assert fingerprints(3, 8) == fingerprints(5, 90)
    one, other = fingerprints(3, 8)
    assert one != other


# RFC 3986, what a path of a URI reference may hold
URI = re.compile(r"(?:file:///)?(?:[A-Za-z0-9._~/-]|%[0-9A-F]{2})*")


@given(st.text(), st.text())
def test_any_text_makes_a_log(where: str, message: str) -> None:
    (result,) = results(Finding("E002", "warning", where, message))
    json.dumps(result).encode()
    (uri,) = re.findall(r'"uri": "([^"]*)"', json.dumps(result))
    assert URI.fullmatch(uri)
