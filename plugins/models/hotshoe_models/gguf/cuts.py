r"""How text is cut before it is merged, by the name that a GGUF file has for it.

A file names the rule (`tokenizer.ggml.pre`) and does not hold it. The expressions are those of the
models' tokenizer.json files, in the syntax of Oniguruma, which the tokenizers library reads.
Left out are rules of architectures whose files are not read, rules of vocabularies that are not
byte-level (`gemma4`, `sarvam-moe`, `whitespace`), and `default`, which stands for an unknown rule.
Source: the names that ggml's llama-vocab.cpp reads; the tokenizer.json files of the models.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe.text.tiktoken_file import PATTERNS as TIKTOKEN


@dataclass(frozen=True, slots=True)
class Cut:
    """How text is cut into pieces that are merged apart.

    Attributes:
        patterns: Each is tried on the pieces that those before it left; a match is a piece, and so
            is the text between two matches.
        whole: A piece that is a token is not merged from its bytes.
        bos: Texts begin with the first token unless the file says otherwise.
        composed: Text is normalized first (NFC).
    """

    patterns: tuple[str, ...]
    whole: bool = False
    bos: bool = False
    composed: bool = False


def _class(ranges: str) -> str:
    """Return the characters of a class, which are given as code points: "41-5A B5"."""
    ends = (part.split("-") for part in ranges.split())
    return "".join("-".join(chr(int(end, 16)) for end in pair) for pair in ends)


_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+"
#: Signs, one of which may lead a word of Latin letters; then words of letters and marks.
_LED = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"

DIGIT, THREE = r"\p{N}", r"\p{N}{1,3}"
GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+|{_SIGNS}|\s+(?!\S)|\s+"
LLAMA3 = rf"{_ENDS}|{_WORD}|{THREE}|{_SIGNS}[\r\n]*|{_BLANKS}"
QWEN2 = rf"{_ENDS}|{_WORD}|{DIGIT}|{_SIGNS}[\r\n]*|{_BLANKS}"
_MARKED = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
QWEN35 = rf"{_ENDS}|{_MARKED}|{DIGIT}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}"
UFAKZEKA = rf"{_WORD}|{DIGIT}|{_SIGNS}[\r\n]*|{_BLANKS}"
MINICPM5 = rf"{_ENDS}|{_WORD}|\p{{N}}+|{_SIGNS}[\r\n]*|{_BLANKS}"
SEED = rf"{_ENDS}|{_WORD}|{DIGIT}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_BLANKS}"
BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|"
    r"\s*[\r\n]|\s+(?!\S)|\s+"
)
TEKKEN = rf"{_CASED % ('', '')}|{DIGIT}|{_SIGNS}[\r\n/]*|{_BLANKS}"
GPT4O = rf"{_CASED % (_ENDS + '?', _ENDS + '?')}|{THREE}|{_SIGNS}[\r\n/]*|{_BLANKS}"
YOUTU = rf"{_CASED % (_ENDS + '?', _ENDS + '?')}|{DIGIT}|{_SIGNS}[\r\n/]*|{_BLANKS}"
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_CHINESE = f"[{_class('4E00-9FA5 3040-309F 30A0-30FF')}]+"
_ASIAN = "|".join(
    f"[{_class(ranges)}]+"
    for ranges in (
        "AC00-D7A3 3131-318E",
        "FF01 2026 201C 201D 2018 2019 2014 FF1A FF1B FF0C 3001-303F FE30-FE4F",
        "3105-312F",
    )
)
_HAN = f"[{_class('4E00-9FA5 800-4E00 AC00-D7FF')}]+"
#: Letters that have a case, as the models' files list them.
_LETTERS = _class(
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 "
    "388-38A 38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA "
    "1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 "
    "1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB "
    "1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D "
    "212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 "
    "A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A "
    "FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)
DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_LETTERS}]+",
    rf"\s?[{_class('21-2F 3A-7E FF01-FF0F FF1A-FF5E 2018-201F 3000-3002')}]+",
    r"\s+$",
    _HAN,
    DIGIT,
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, DIGIT)
_PLAIN, _DIGITS = Cut((GPT2,)), Cut((DIGIT, GPT2))
_LLAMA3, _QWEN2 = Cut((LLAMA3,), whole=True, bos=True), Cut((QWEN2,), composed=True)
_THREES, _SINGLE, _GPT4O = Cut((LLAMA3,)), Cut((QWEN2,)), Cut((GPT4O,))
_BLOOM, _DEEPSEEK = Cut((BLOOM,)), Cut((THREE, _CHINESE, rf"{_LED}[\r\n]*|{_BLANKS}"))
_GROUPS = {
    "gpt-2 olmo mpt phi-2 granite-docling exaone4 jais trillion gigachat a.x-4.0 mellum": _PLAIN,
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": _DIGITS,
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2 midm-2.0": _LLAMA3,
    "smaug-bpe dbrx glm4 chatglm-bpe": _THREES,
    "qwen2 deepseek-r1-qwen megrez hunyuan kormo f2llmv2": _QWEN2,
    "qwen35": Cut((QWEN35,), composed=True),
    "stablelm2 solar-open grok-2": _SINGLE,
    "bailingmoe bailingmoe2 llada-moe": Cut((BAILING,)),
    "ufakzeka": Cut((UFAKZEKA,)),
    "minicpm5": Cut((THREE, MINICPM5), whole=True),
    "seed-coder": Cut((SEED,)),
    "tekken": Cut((TEKKEN,), whole=True, bos=True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": _GPT4O,
    "kimi-k2": Cut((TIKTOKEN["tokenization_kimi.TikTokenTokenizer"],)),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": _DEEPSEEK,
    "deepseek-llm": Cut(DEEPSEEK_LLM),
    "deepseek-coder": Cut(DEEPSEEK_CODER),
    "youtu": Cut((f"{_ASIAN}|{_CHINESE}", YOUTU), whole=True),
    "poro-chat bloom gpt3-finnish": _BLOOM,
    "viking": Cut((BLOOM, DIGIT)),
}
#: By tokenizer.ggml.pre.
CUTS = {name: cut for names, cut in _GROUPS.items() for name in names.split()}
