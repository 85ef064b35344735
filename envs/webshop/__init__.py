"""WebShop (Yao et al. 2022): shopping from an instruction, in text; the official rules in plain Python.

In the order in which the files are best read:

1. What is sold and wanted: `catalogue.product`, `goals` (how one is constructed, their order and splits).
2. What a purchase is worth: `reward`, with `catalogue.nouns`.
3. The shop: `shop` (what each page shows, where an action leads and what a shopper sees), `env` (Gymnasium).
4. The search: `catalogue.search` (from a text to its words, BM25, the files that are mapped).
5. Where it comes from, in `catalogue`: `product` (the official files), `catalogue` (which one is meant, and how it is cached).
6. The generated catalogue: `maker`, with its tables in TOML.
7. `live` plays on a running server of princeton-nlp/WebShop.
8. Who shops: `expert`, by what a page shows, and `solve`, the oracle.

Products, goals, the reward and the pages know no catalogue, and the shop keeps nothing of an episode: one serves every environment
of a process. A rule that is upstream's names the file of princeton-nlp/WebShop that it is from; where we differ, the file says so.
"""
