// The vocabulary and the merges of a tokenizer file, read without a tree of them in memory.
#pragma once

#include <string_view>

#include "base/result.h"
#include "text/bpe.h"
#include "text/merge_table.h"
#include "text/vocabulary.h"

namespace weft::text {

// {"token": id, ...}. `is_byte_level`: the tokens are written in GPT-2's alphabet (byte_alphabet.h); one that
// is not can be decoded, but no text becomes it. Corrupted, OutOfRange: as Vocabulary::add says, or a member
// that is no id.
Result<Vocabulary> read_vocabulary(std::string_view json, bool is_byte_level, size_t id_limit);

// ["a b", ...] or [["a", "b"], ...], the first merge first; at most `count`. Those that lead to a token of
// `options.never` count and do nothing. Corrupted: one of another form, or of tokens that the vocabulary
// lacks.
Result<MergeTable> read_merges(std::string_view json, size_t count, const Vocabulary& vocabulary,
                               const BpeOptions& options);

}  // namespace weft::text
