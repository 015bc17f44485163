"""`python -m flatwalk.reference`: writes anew what follows from the engine's schemas."""

from flatwalk.reference import columns, commands, glossary, man, page, shipped, types

for path, text in (
    (page.PATH, page.text()),
    (types.PATH, types.text()),
    (columns.PATH, columns.text()),
    (man.PATH, man.text()),
    (commands.PATH, commands.text()),
    (glossary.PATH, glossary.text()),
    (shipped.PATH, shipped.text()),
):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(path)
