"""WebShop (Yao et al. 2022): shopping from an instruction, in text; the official rules in plain Python.

In the order in which the files are best read:

1. What is sold and wanted: `catalogue.product`, `goals` (how one is constructed, their order and splits).
2. What a purchase is worth: `reward`, with `catalogue.nouns`.
3. The shop: `pages` (what each shows, as texts), `shop` (where an action leads and what a shopper sees), `env` (Gymnasium).
4. The search: `catalogue.analysis` (from a text to its words), `catalogue.search` (BM25).
5. Where it comes from, in `catalogue`: `product` (the official files), `store` (kept on a machine, mapped), `catalogue` (which one is
   meant).
6. The generated catalogue: `maker`, with its tables in TOML.
7. `live` plays on a running server of princeton-nlp/WebShop.
8. Who shops: `expert`, by what a page shows (`reading`), and `solve`, the oracle.

Products, goals, the reward and the pages know no catalogue, and the shop keeps nothing of an episode: one serves every environment
of a process. A rule that is upstream's names the file of princeton-nlp/WebShop that it is from; where we differ, the file says so.
"""
