"""Text of others inside Markdown and HTML: it is text, whatever it says."""

import html.parser
import re

import pytest
from markdown_it import MarkdownIt

from digen_core.config.run import RunConfig
from digen_core.inputs.text import printable
from digen_core.records import EvaluationReport, IterationRecord, Picture
from digen_core.trace.page import Table, page
from tasks.views.display import Progress
from tasks.views.markdown import cell, code, escaped
from tasks.views.report import iteration_report, report_of

HOSTILE = [
    "![x](http://evil.example/a.png)",
    "[click](javascript:alert(1))",
    "<img src=x onerror=alert(1)>",
    "</code><script>alert(1)</script>",
    "a | b | c",
    r"a \| b",
    r"a \\| b \\\| c|",
    "`code` and ``more``",
    "`",
    "``` | ```",
    "http://evil.example and www.evil.example and a@evil.example",
    "# head\n\n| a |\n|---|\n| b |\n\n- x\n\n    y",
    "**bold** _it_ ~~no~~ &lt;b&gt; &#33;",
    "ends with a backslash \\",
    "a\u202eb \x1b[31mred\x07\x9b",
]
PICTURE = re.compile(r"data:image/(png|jpeg|svg\+xml);base64,[\w+/=]+")


def tokens_of(text: str) -> list:
    """Return the tokens of a text as GitHub's Markdown is read, with HTML and tables."""
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    tokens = parser.parse(text)
    return [*tokens, *(child for token in tokens for child in token.children or ())]


def assert_harmless(tokens: list) -> None:
    kinds = {token.type for token in tokens}
    assert not kinds & {"html_inline", "html_block", "link_open", "code_block", "hr", "s_open"}
    pictures = [token.attrs["src"] for token in tokens if token.type == "image"]
    assert all(PICTURE.fullmatch(source) for source in pictures)
    texts = " ".join(token.content for token in tokens if token.type == "text")
    assert "evil" not in texts  # outside of code spans Prefect's pages make links of addresses


def test_prompts_and_names_stay_text_on_an_iterations_page():
    metrics = {f"reward/{name}/x": 0.5 for name in HOSTILE} | {"reward/mean": 0.5}
    idle = {name: {"tail": 0.5} for name in HOSTILE}
    pictures = [Picture(group, prompt, 0.5, b"JPEG") for group, prompt in enumerate(HOSTILE)]
    record = IterationRecord(0, 1, 1.0, metrics | {"idle/tail": 0.5}, idle=idle, pictures=pictures)
    tokens = tokens_of(iteration_report(record, b"PNG"))
    assert_harmless(tokens)
    count = {
        kind: sum(token.type == kind for token in tokens) for kind in ("table_open", "tr_open")
    }
    assert count == {"table_open": 3, "tr_open": 3 + (len(HOSTILE) + 1) * 2 + len(HOSTILE)}
    tables = [token for token in tokens if token.type in ("th_open", "td_open")]
    columns = [2, 3, 2]
    rows = [len(HOSTILE) + 2, len(HOSTILE) + 2, len(HOSTILE) + 1]
    assert len(tables) == sum(c * r for c, r in zip(columns, rows, strict=True))


def test_warnings_and_names_stay_text_in_a_report():
    for text in HOSTILE:
        progress = Progress(RunConfig(), phase=f"starting {text}", warnings=[text])
        progress.evaluations = {
            text: EvaluationReport(version=0, num_prompts=1, num_samples=1, rewards={text: 0.5})
        }
        progress.add_iteration(
            IterationRecord(0, 1, 1.0, {"reward/mean": 1, f"device/{text}/busy_fraction": 0.5})
        )
        report = report_of("run", progress, {"MLflow": f"mlflow ui {text}", "Dask": text})
        tokens = tokens_of(report)
        assert_harmless(tokens)
        assert [token.tag for token in tokens if token.type == "heading_open"] == ["h1"]
        spans = [token.content for token in tokens if token.type == "code_inline"]
        assert printable(" ".join(text.split())) in [span.strip() for span in spans]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_code_span_shows_the_text(text):
    shown = printable(" ".join(text.split()))
    (span,) = [token for token in tokens_of(code(text)) if token.type == "code_inline"]
    assert span.content == shown
    tokens = tokens_of(f"| a | b |\n|---|---|\n| {cell(text)} | end |\n")
    (span,) = [token for token in tokens if token.type == "code_inline"]
    assert span.content.replace("\\", "") == shown.replace("\\", "")
    assert [token.content for token in tokens if token.type == "inline"][-1] == "end"


def test_words_stay_words():
    assert cell("a red circle, left of a blue-green square") == (
        "a red circle, left of a blue-green square"
    )
    assert cell("_a_") == "`_a_`"
    assert code("") == "` `"


@pytest.mark.parametrize("text", HOSTILE)
def test_names_in_sentences_of_ours_make_no_markup(text):
    tokens = tokens_of(f"run: {escaped(text)}")
    assert_harmless(tokens)
    kinds = {token.type for token in tokens}
    harmless = {"paragraph_open", "inline", "paragraph_close", "text", "text_special"}
    assert kinds <= {*harmless, "code_inline"}


def test_a_password_in_an_address_is_not_shown():
    for show in (code, cell, escaped):
        assert "s3cret" not in show("see http://u:s3cret@h/")


def test_a_page_of_html_shows_text_as_text():
    class Seen(html.parser.HTMLParser):
        def __init__(self):
            super().__init__()
            self.tags, self.attributes, self.text = [], [], []

        def handle_starttag(self, tag, attrs):
            self.tags.append(tag)
            self.attributes += [name for name, _ in attrs]

        def handle_data(self, data):
            self.text.append(data)

    for text in [*HOSTILE, '"><img src=x onerror=alert(1)>', "' onload='x"]:
        seen, harmless = Seen(), Seen()
        for parser, word in ((seen, text), (harmless, "word")):
            parser.feed(page(word, [(word, [word, Table((word,), [[word]]), b"PNG"])]))
        assert (seen.tags, seen.attributes) == (harmless.tags, harmless.attributes)
        assert seen.text.count(text) == harmless.text.count("word")
