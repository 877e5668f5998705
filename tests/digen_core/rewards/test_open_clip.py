"""HPS v2's checkpoint, as open_clip saves one, against the model that it is of."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import CLIPModel

from deployments.cli import run

WIDTH, PROJECTION, VOCABULARY, CONTEXT, PATCH, GRID = 32, 24, 40, 12, 4, 3


class Block(nn.Module):
    """open_clip's residual attention block."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = nn.MultiheadAttention(WIDTH, 16, batch_first=True)
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(WIDTH, 3 * WIDTH), "c_proj": nn.Linear(3 * WIDTH, WIDTH)}
        )

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        normed = self.ln_1(x)
        x = x + self.attn(normed, normed, normed, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp["c_proj"](functional.gelu(self.mlp["c_fc"](self.ln_2(x))))


class Transformer(nn.Module):
    """Blocks, one after the other."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for block in self.resblocks:
            x = block(x, mask)
        return x


class Visual(nn.Module):
    """open_clip's vision tower."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTH, PATCH, PATCH, bias=False)
        self.class_embedding = nn.Parameter(torch.randn(WIDTH))
        self.positional_embedding = nn.Parameter(torch.randn(GRID**2 + 1, WIDTH))
        self.ln_pre, self.ln_post = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.transformer = Transformer(3)
        self.proj = nn.Parameter(torch.randn(WIDTH, PROJECTION))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.conv1(images).flatten(2).transpose(1, 2)
        first = self.class_embedding.expand(len(images), 1, -1)
        x = self.ln_pre(torch.cat([first, patches], 1) + self.positional_embedding)
        return self.ln_post(self.transformer(x)[:, 0]) @ self.proj


class OpenClip(nn.Module):
    """What open_clip's ViT-H/14 is, but small: the names of its weights and its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.visual, self.transformer = Visual(), Transformer(2)
        self.token_embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.positional_embedding = nn.Parameter(torch.randn(CONTEXT, WIDTH))
        self.ln_final = nn.LayerNorm(WIDTH)
        self.text_projection = nn.Parameter(torch.randn(WIDTH, PROJECTION))
        self.logit_scale = nn.Parameter(torch.tensor(3.5))
        for parameter in self.parameters():  # norms and biases too
            parameter.data += 0.1 * torch.randn_like(parameter)

    def encode_text(self, tokens: Tensor) -> Tensor:
        mask = torch.full((CONTEXT, CONTEXT), -torch.inf).triu(1)
        x = self.token_embedding(tokens) + self.positional_embedding
        x = self.ln_final(self.transformer(x, mask))
        return x[torch.arange(len(tokens)), tokens.argmax(-1)] @ self.text_projection


@pytest.fixture(scope="module")
def original() -> OpenClip:
    torch.manual_seed(0)
    return OpenClip().eval()


@torch.no_grad()
def test_the_converted_model_embeds_as_the_original(original, tmp_path, capsys):
    weights = {**original.state_dict(), "attn_mask": torch.zeros(CONTEXT, CONTEXT)}
    torch.save({"epoch": 3, "state_dict": weights}, tmp_path / "hps.pt")
    assert run(["convert-hps", str(tmp_path / "hps.pt"), str(tmp_path / "hps")]) == 0
    assert "laion/CLIP-ViT-H-14-laion2B-s32B-b79K" in capsys.readouterr().out
    converted = CLIPModel.from_pretrained(tmp_path / "hps").eval()

    images = torch.randn(4, 3, GRID * PATCH, GRID * PATCH)
    found = converted.get_image_features(images).pooler_output
    torch.testing.assert_close(found, original.visual(images), rtol=1e-4, atol=1e-4)

    end = VOCABULARY - 1
    tokens = torch.tensor([[38, 5, 7, 9, end] + [0] * 7, [38, *range(1, 11), end]])
    found = converted.get_text_features(tokens).pooler_output
    torch.testing.assert_close(found, original.encode_text(tokens), rtol=1e-4, atol=1e-4)
    assert float(converted.logit_scale) == float(original.logit_scale)


def test_half_precision_weights_by_themselves_are_taken_too(original, tmp_path):
    weights = {name: value.half() for name, value in original.state_dict().items()}
    torch.save(weights, tmp_path / "hps.pt")
    assert run(["convert-hps", str(tmp_path / "hps.pt"), str(tmp_path / "hps")]) == 0
    converted = CLIPModel.from_pretrained(tmp_path / "hps")
    assert {value.dtype for value in converted.parameters()} == {torch.float32}


def without(original: OpenClip, name: str) -> dict[str, Tensor]:
    return {key: value for key, value in original.state_dict().items() if key != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: without(model, "visual.conv1.weight"), "holds no ViT-H/14 of open_clip"),
        (lambda model: without(model, "visual.ln_pre.bias"), "vision_model.pre_layrnorm.bias"),
        (lambda model: {**model.state_dict(), "head.weight": torch.ones(1)}, "head.weight"),
        (lambda model: [1, 2], "holds no ViT-H/14 of open_clip"),
    ],
)
def test_what_is_no_such_checkpoint_is_one_line(original, change, message, tmp_path, capsys):
    torch.save(change(original), tmp_path / "x.pt")
    assert run(["convert-hps", str(tmp_path / "x.pt"), str(tmp_path / "hps")]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line
    assert not (tmp_path / "hps").exists()


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x80\x02."])
def test_a_damaged_file_is_one_line(content, tmp_path, capsys):
    (tmp_path / "x.pt").write_bytes(content)
    assert run(["convert-hps", str(tmp_path / "x.pt"), str(tmp_path / "hps")]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "x.pt cannot be read as a checkpoint: " in line


def test_a_file_that_would_run_code_is_refused(tmp_path, capsys):
    torch.save({"state_dict": print}, tmp_path / "x.pt")
    assert run(["convert-hps", str(tmp_path / "x.pt"), str(tmp_path / "hps")]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "cannot be read as a checkpoint" in line
    assert run(["convert-hps", str(tmp_path / "none.pt"), str(tmp_path / "hps")]) == 2
    assert "none.pt" in capsys.readouterr().err
