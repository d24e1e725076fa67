"""Pictures and sound as models want them: sizes, scales, order, and one clear line for what cannot be read."""

import sys

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from scipy.io import wavfile
from torch import nn

from kit import checkpoint_folders as folders
from rankscope.errors import ConfigError, FileError, MissingExtraError, ShapeError
from rankscope.sources import images as module
from rankscope.sources.audio import audio_batches, log_mel, read_audio, sample_audio
from rankscope.sources.images import ImageShape, image_batches, image_shape, read_images, sample_images
from rankscope.sources.loading import load_model

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def vit(**changes):
    return transformers.ViTModel(
        transformers.ViTConfig(**{**SMALL, "image_size": 32, "patch_size": 8, **changes})
    ).eval()


# ------------------------------------------------------------------------------------------ reading images


def test_pictures_of_a_folder_come_in_natural_order(tmp_path):
    for number in (10, 9, 1):
        pixels = np.full((4, 6, 3), number, dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"p{number}.png")
    (tmp_path / "notes.txt").write_text("not a picture")
    found = list(read_images(tmp_path))
    assert [name for name, _ in found] == ["p1.png", "p9.png", "p10.png"]
    for (_, picture), number in zip(found, (1, 9, 10), strict=True):
        np.testing.assert_array_equal(picture, np.full((4, 6, 3), number / 255))
    assert [name for name, _ in read_images([tmp_path / "p9.png", tmp_path / "p1.png"])] == [
        "p9.png",
        "p1.png",
    ]


def test_gray_and_transparent_pictures(tmp_path):
    Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4)).save(tmp_path / "gray.png")
    Image.fromarray(np.full((3, 4, 4), 128, dtype=np.uint8)).save(tmp_path / "see.png")
    assert dict(read_images(tmp_path))["gray.png"].shape == (3, 4, 1)
    assert dict(read_images(tmp_path))["see.png"].shape == (3, 4, 3)


@pytest.mark.parametrize(
    ("shape", "count", "each"),
    [
        ((5, 7), 1, (5, 7, 1)),
        ((5, 7, 3), 1, (5, 7, 3)),
        ((3, 5, 7), 1, (5, 7, 3)),
        ((1, 5, 7), 1, (5, 7, 1)),
        ((4, 5, 7), 4, (5, 7, 1)),
        ((4, 5, 7, 3), 4, (5, 7, 3)),
        ((4, 3, 5, 7), 4, (5, 7, 3)),
    ],
)
def test_arrays_of_several_shapes(tmp_path, shape, count, each):
    values = np.random.default_rng(0).random(shape)
    np.save(tmp_path / "a.npy", values)
    found = list(read_images(tmp_path / "a.npy"))
    assert [picture.shape for _, picture in found] == [each] * count
    np.testing.assert_allclose(sum(picture.sum() for _, picture in found), values.sum(), rtol=1e-12)
    np.save(tmp_path / "a.npy", np.full(shape, 51, dtype=np.uint8))
    assert all((picture == 0.2).all() for _, picture in read_images(tmp_path / "a.npy"))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(4), r"shape \(4,\); expected height x width, with 1 or 3 channels"),
        (np.zeros((2, 2, 5, 5, 3)), r"expected height x width"),
        (np.zeros((4, 5, 7, 9)), r"shape \(5, 7, 9\)"),
        (np.full((5, 7), 2.0), r"numbers between 2 and 2; expected bytes, or numbers between 0 and 1"),
        (np.full((5, 7), -0.1), r"between -0\.1 and -0\.1"),
        (np.full((5, 7), np.nan), r"between nan and nan"),
    ],
)
def test_arrays_that_are_no_images(tmp_path, array, message):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ShapeError, match=message):
        list(read_images(tmp_path / "a.npy"))


def test_files_that_are_no_images(tmp_path):
    (tmp_path / "broken.png").write_bytes(b"\x89PNG but no more")
    with pytest.raises(FileError, match=r"cannot read the image '.*broken\.png'") as caught:
        list(read_images(tmp_path))
    assert "\n" not in str(caught.value)
    (tmp_path / "a.npy").write_bytes(b"")
    with pytest.raises(FileError, match=r"expected an array of numbers written by numpy\.save"):
        list(read_images(tmp_path / "a.npy"))
    np.save(tmp_path / "a.npy", np.array([None]), allow_pickle=True)
    with pytest.raises(FileError, match="it holds Python objects"):
        list(read_images(tmp_path / "a.npy"))
    with pytest.raises(FileError, match="no such file or folder"):
        list(read_images(tmp_path / "nowhere"))
    (tmp_path / "a.tiff").write_bytes(b"")
    with pytest.raises(FileError, match=r"expected a file ending in \.png, \.jpg"):
        list(read_images(tmp_path / "a.tiff"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match=r"holds no images; expected files ending in \.png"):
        list(read_images(tmp_path / "empty"))
    with pytest.raises(FileError, match="no images were named"):
        list(read_images([]))


def test_pillow_is_named_when_it_is_missing(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(b"")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"reading 'a\.png' needs pillow: pip install pillow"):
        list(read_images(tmp_path))


# -------------------------------------------------------------------------------------------------- sample


def test_the_sample_is_digits_where_there_are_some(monkeypatch):
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    found = sample_images(5)
    assert [name for name, _ in found] == [f"digit {n} ({n + 1})" for n in range(5)]
    assert all(
        picture.shape == (8, 8, 1) and picture.min() >= 0 and picture.max() <= 1 for _, picture in found
    )


def test_the_sample_is_drawn_elsewhere(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    first, again, other = sample_images(3, seed=0), sample_images(3, seed=0), sample_images(3, seed=1)
    for (_, a), (_, b), (_, c) in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.abs(a - c).max() > 0.1
        assert (a.min(), a.max(), a.shape) == (0, 1, (64, 64, 3))
        # smooth: no two neighbors differ by as much as random dots would
        assert np.abs(np.diff(a, axis=0)).max() < 0.5


# ------------------------------------------------------------------------------------------ preparing images


def test_images_have_the_size_and_scale_of_the_config():
    model = vit(image_size=[24, 40])
    pictures = [
        ("a", np.full((7, 9, 3), 0.25)),
        ("b", np.full((90, 60, 1), 1.0)),
        ("c", np.zeros((24, 40, 3))),
    ]
    batches = list(image_batches(pictures, model, batch_size=2))
    assert [batch.labels for batch in batches] == [("a", "b"), ("c",)]
    assert all(batch.is_token is None for batch in batches)
    pixels = torch.cat([batch.inputs["pixel_values"] for batch in batches])
    assert pixels.shape == (3, 3, 24, 40)
    for value, expected in zip(pixels, (-0.5, 1.0, -1.0), strict=True):
        torch.testing.assert_close(value, torch.full((3, 24, 40), expected))
    model(**batches[0].inputs)


def test_channels_are_repeated_or_averaged():
    picture = np.stack([np.full((8, 8), value) for value in (0.0, 0.5, 1.0)], axis=2)
    (batch,) = image_batches([("a", picture)], vit(num_channels=1))
    torch.testing.assert_close(batch.inputs["pixel_values"], torch.zeros(1, 1, 32, 32))


def test_a_size_that_is_already_right_changes_no_pixel():
    picture = np.random.default_rng(0).random((32, 32, 3))
    (batch,) = image_batches([("a", picture)], vit().double())
    expected = torch.from_numpy(2 * picture - 1).permute(2, 0, 1)[None]
    torch.testing.assert_close(batch.inputs["pixel_values"], expected)
    assert batch.inputs["pixel_values"].dtype == torch.float64


def test_the_processor_of_a_folder_is_used(tmp_path):
    path = folders.save(vit(), tmp_path / "vit")
    transformers.ViTImageProcessorPil(
        size={"height": 32, "width": 32}, image_mean=[0, 0, 0], image_std=[0.5, 0.5, 0.5]
    ).save_pretrained(path)
    result = load_model(path)
    assert (result.kind, result.warnings) == ("image", ())
    pictures = [("a", np.full((32, 32, 1), 0.2)), ("b", np.full((50, 40, 3), 1.0))]
    (batch,) = image_batches(pictures, result.model, processor=result.processor)
    torch.testing.assert_close(batch.inputs["pixel_values"][0], torch.full((3, 32, 32), 0.4))
    torch.testing.assert_close(batch.inputs["pixel_values"][1], torch.full((3, 32, 32), 2.0))
    result.model(**batch.inputs)


def test_an_unreadable_processor_is_a_warning(tmp_path):
    path = folders.save(vit(), tmp_path / "vit")
    (path / "preprocessor_config.json").write_text("{")
    result = load_model(path)
    assert result.processor is None
    assert result.warnings[0].startswith("its processor could not be loaded: ")


class TimmLike(nn.Module):
    """The attributes of a timm model that say what it reads."""

    def __init__(self, **settings):
        super().__init__()
        self.pretrained_cfg = settings
        self.patch_embed = nn.Module()
        self.patch_embed.img_size = (16, 24)
        self.patch_embed.proj = nn.Conv2d(3, 8, 8, 8)

    def forward(self, x):
        return self.patch_embed.proj(x)


def test_models_of_timm_are_fed_by_position_with_their_mean_and_deviation():
    model = TimmLike(input_size=(3, 224, 224), mean=(0.5, 0.25, 0.0), std=(0.5, 0.25, 1.0))
    assert image_shape(model) == ImageShape(
        channels=3, height=16, width=24, mean=(0.5, 0.25, 0.0), deviation=(0.5, 0.25, 1.0)
    )
    (batch,) = image_batches([("a", np.full((9, 9, 3), 0.5))], model)
    assert set(batch.inputs) == {""}
    torch.testing.assert_close(batch.inputs[""][0].mean(dim=(1, 2)), torch.tensor([0.0, 1.0, 0.5]))
    model(batch.inputs[""])
    assert image_shape(nn.Linear(2, 2)) == ImageShape(channels=3, height=224, width=224)


def test_batches_of_no_images():
    with pytest.raises(ConfigError, match="a batch of 0 images cannot be made"):
        next(image_batches([], vit(), batch_size=0))


# --------------------------------------------------------------------------------------------------- sound


def whisper():
    return transformers.WhisperModel(
        transformers.WhisperConfig(
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            num_mel_bins=20,
            max_source_positions=50,
            max_target_positions=40,
            vocab_size=100,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=3,
        )
    ).eval()


def wav2vec2():
    return transformers.Wav2Vec2Model(
        transformers.Wav2Vec2Config(
            **SMALL,
            conv_dim=(8, 8),
            conv_stride=(5, 4),
            conv_kernel=(10, 4),
            num_feat_extract_layers=2,
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
        )
    ).eval()


def spectrogram():
    return transformers.ASTModel(transformers.ASTConfig(**SMALL, max_length=64, num_mel_bins=32)).eval()


def test_the_sample_of_sound():
    first, again, other = sample_audio(2), sample_audio(2), sample_audio(2, seed=1)
    np.testing.assert_array_equal(first[0][1], again[0][1])
    assert np.abs(first[0][1] - other[0][1]).max() > 0.1
    assert len(first[0][1]) == 32_000
    assert 0.1 < np.abs(first[0][1]).max() < 2


def test_waveforms_are_scaled_and_lengths_do_not_mix():
    waves = [
        ("a", np.arange(3200.0)),
        ("b", np.arange(3200.0) ** 2),
        ("c", np.arange(4000.0)),
        ("d", np.arange(3200.0)),
    ]
    model = wav2vec2()
    batches = list(audio_batches(waves, model, batch_size=8))
    assert [batch.labels for batch in batches] == [("a", "b"), ("c",), ("d",)]
    for batch in batches:
        values = batch.inputs["input_values"]
        assert set(batch.inputs) == {"input_values"}
        torch.testing.assert_close(values.mean(dim=1), torch.zeros(len(batch)), rtol=0, atol=1e-6)
        torch.testing.assert_close(values.std(dim=1, correction=0), torch.ones(len(batch)))
        model(**batch.inputs)
    assert [len(batch) for batch in audio_batches(waves, model, batch_size=1)] == [1, 1, 1, 1]


def test_whisper_gets_features_and_its_decoder_tokens():
    model = whisper()
    (batch,) = audio_batches(sample_audio(2), model)
    assert batch.inputs["input_features"].shape == (2, 20, 100)
    ids = batch.inputs["decoder_input_ids"]
    assert ids.shape == (2, 16)
    assert ids[:, 0].tolist() == [3, 3]
    assert ids[:, 1:].min() > 3
    model(**batch.inputs)
    (short,) = audio_batches(sample_audio(1, seconds=0.2), model)
    assert short.inputs["input_features"].shape == (1, 20, 100)


def test_spectrogram_transformers_get_frames_first():
    model = spectrogram()
    (batch,) = audio_batches(sample_audio(2), model)
    assert batch.inputs["input_values"].shape == (2, 64, 32)
    model(**batch.inputs)


def test_log_mel_finds_the_pitch():
    """A pure tone lights the band whose corners hold its frequency, by the plain formula of the mel scale."""
    time = torch.arange(16_000, dtype=torch.float64) / 16_000
    top = 2595 * np.log10(1 + 8000 / 700)
    for pitch in (300.0, 1000.0, 4000.0):
        features = log_mel(torch.sin(2 * torch.pi * pitch * time), 40)
        assert features.shape == (40, 100)
        expected = 2595 * np.log10(1 + pitch / 700) / top * 41 - 1
        assert abs(float(features.mean(dim=1).argmax()) - expected) < 1
        assert features.max() - features.min() <= 2 + 1e-12


def test_the_feature_extractor_of_a_folder_is_used(tmp_path):
    path = folders.save(wav2vec2(), tmp_path / "speech")
    transformers.Wav2Vec2FeatureExtractor(do_normalize=False).save_pretrained(path)
    result = load_model(path)
    assert result.kind == "audio"
    wave = sample_audio(1, seconds=0.2)
    (batch,) = audio_batches(wave, result.model, processor=result.processor)
    torch.testing.assert_close(batch.inputs["input_values"][0], torch.from_numpy(wave[0][1]).float())


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.uint8, np.float32])
def test_wave_files_of_any_depth(tmp_path, dtype):
    wave = 0.5 * np.sin(np.arange(8000) / 10)
    scale = {np.int16: 2**15, np.int32: 2**31, np.uint8: 2**7, np.float32: 1}[dtype]
    stored = wave * scale + (128 if dtype == np.uint8 else 0)
    wavfile.write(tmp_path / "a.wav", 16_000, np.stack([stored, stored], axis=1).astype(dtype))
    ((name, found),) = read_audio(tmp_path)
    assert name == "a.wav"
    # eight bits have steps of 1/128
    np.testing.assert_allclose(found, wave, rtol=0, atol=1 / 128 if dtype == np.uint8 else 1e-4)


def test_other_rates_are_resampled(tmp_path):
    wavfile.write(tmp_path / "a.wav", 44_100, np.sin(2 * np.pi * 440 * np.arange(44_100) / 44_100))
    ((_, found),) = read_audio(tmp_path / "a.wav")
    assert len(found) == 16_000
    inner = slice(200, -200)
    expected = np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    # the filter of the resampling has a ripple of about a percent
    np.testing.assert_allclose(found[inner], expected[inner], rtol=0, atol=0.02)


def test_arrays_of_sound(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(2000.0))
    ((_, found),) = read_audio(tmp_path)
    np.testing.assert_array_equal(found, np.arange(2000.0))
    for wrong, message in (
        (np.zeros((2, 2000)), r"shape \(2, 2000\) and dtype float64; expected one axis"),
        (np.zeros(2000, dtype=int), r"dtype int64; expected one axis of floating-point numbers"),
        (np.zeros(100), r"has 100 samples; expected at least 1600 finite ones"),
        (np.full(2000, np.inf), r"expected at least 1600 finite ones"),
    ):
        np.save(tmp_path / "a.npy", wrong)
        with pytest.raises(ShapeError, match=message):
            list(read_audio(tmp_path))


def test_what_is_no_sound(tmp_path):
    (tmp_path / "a.wav").write_bytes(b"RIFF but not really, and much too short")
    with pytest.raises(FileError, match=r"cannot read the sound .*; expected a \.wav file"):
        list(read_audio(tmp_path))
    (tmp_path / "a.mp3").write_bytes(b"")
    with pytest.raises(FileError, match=r"expected a file ending in \.wav, \.npy"):
        list(read_audio(tmp_path / "a.mp3"))
    with pytest.raises(ConfigError, match="BertModel does not read sound; its inputs are input_ids"):
        next(audio_batches(sample_audio(1), folders.bert()))
    with pytest.raises(ConfigError, match="a batch of 0 waveforms"):
        next(audio_batches(sample_audio(1), wav2vec2(), batch_size=0))


def test_features_of_an_unknown_shape_are_refused():
    class Unknown(nn.Module):
        def forward(self, input_features):
            return input_features

    with pytest.raises(ConfigError, match="the shape of the features that Unknown reads is not known"):
        next(audio_batches(sample_audio(1), Unknown()))


def test_nothing_of_transformers_is_needed_for_the_samples(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert len(sample_audio(1)) == len(sample_images(1)) == 1
