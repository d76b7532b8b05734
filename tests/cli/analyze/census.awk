# Writes an FFN census as the runtime this replaces does (no .meta, no .detail), with counts that add up.
#   awk -v blocks=3 -v width=640 -v passes=11 -v hot=32 -v recurs=0.75 [-v shift=0] -f census.awk
# In each pass the hot neurons (evenly spaced, from `shift`) are 1.5, the others 2^-11; block 1 has no FFN.
# `recurs`: the share of each top-K set that the next pass has too.
function row(il) { return il == 1 ? 0 : width }
function rust(x,  e) { # 1.50000e0
    if (x == 0) return "0.00000e0"
    x = sprintf("%.5e", x)
    e = substr(x, index(x, "e") + 1) + 0
    return substr(x, 1, index(x, "e")) e
}
function list(what, il,  i, text) {
    text = ""
    for (i = 0; i < (what == "mass" ? width : what == "hits" ? 4 : 64); i++)
        text = text (i ? "," : "") element(what, i)
    return row(il) ? "[" text "]" : "[]"
}
function element(what, i) {
    if (what == "mass") return rust(is_hot[i] ? passes * 1.5 : passes / 2048)
    if (what == "hits") return int((passes - 1) * k[i] * recurs)
    if (what == "count") return i == 33 ? passes * hot : i == 22 ? passes * (width - hot) : 0
    return rust(i == 33 ? passes * hot * 1.5 : i == 22 ? passes * (width - hot) / 2048 : 0)
}
function rows(what,  il, text) {
    for (il = 0; il < blocks; il++) text = text (il ? "," : "") list(what, il)
    return "[" text "]"
}
BEGIN {
    for (i = 0; i < hot; i++) is_hot[(i * int(width / hot) + shift) % width] = 1
    for (i = 0; i < 4; i++) k[i] = 512 * 2 ^ i < width ? 512 * 2 ^ i : width
    printf "{\"num_layers\":%d,\"inter\":%d,\"decode_passes\":%d,\"prefill_passes\":7,\"bucket_exp_offset\":33,", blocks, width, passes
    printf "\"overlap_ks\":[%d, %d, %d, %d],\"overlap_pairs\":%d,", k[0], k[1], k[2], k[3], passes - 1
    printf "\"overlap_hits\":%s,\"hist_count\":%s,\"hist_mass\":%s,\"mass\":%s}", rows("hits"), rows("count"), rows("bucket"), rows("mass")
}
