#include "text/bpe.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <queue>
#include <set>
#include <utility>

#include "text/decode_rules.h"
#include "text/utf8.h"

namespace weft::text {
namespace {

constexpr size_t kFew = 48;       // symbols; so many are merged by looking at each pair each time
constexpr size_t kWholeMax = 64;  // bytes of a token that is looked up before a piece is taken apart

constexpr size_t kWholeBytesMax = 8 << 20;  // of all of these: a second's work at most
constexpr size_t kJoinedMax = 16;           // characters

std::string_view last_character(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return text.substr(begin);
}

}  // namespace

Bpe::Bpe(Vocabulary vocabulary, MergeTable merges, BpeOptions options)
    : vocabulary_(std::move(vocabulary)), merges_(std::move(merges)), options_(std::move(options)) {
  for (size_t byte = 0; byte < 256; ++byte) {
    const char one = static_cast<char>(byte);
    of_byte_[byte] = vocabulary_.find({&one, 1}).value_or(kNone);
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(byte));
    fallback_of_[byte] = vocabulary_.find(name).value_or(kNone);
  }
  find_whole_tokens();
}

// Most pieces of a text are tokens as they are. Which of these the merges would find is known from here on,
// so that a piece costs one look into the vocabulary: a cache that is complete, bounded, and needs no lock.
void Bpe::find_whole_tokens() {
  is_whole_.assign(vocabulary_.size(), options_.ignore_merges);
  if (options_.ignore_merges) return;
  std::vector<bool> found(vocabulary_.size());
  std::vector<TokenId> tokens;
  size_t left = kWholeBytesMax;
  for (TokenId id = 0; id < vocabulary_.size(); ++id) {
    const std::string_view piece = vocabulary_.text(id);
    if (piece.empty() || piece.size() > std::min(kWholeMax, left)) continue;
    left -= piece.size();
    tokens.clear();
    encode(piece, tokens);
    found[id] = tokens.size() == 1 && tokens[0] == id;
  }
  is_whole_ = std::move(found);
}

void Bpe::encode(std::string_view piece, std::vector<TokenId>& tokens) const {
  if (piece.size() <= kWholeMax || options_.ignore_merges) {
    const auto whole = vocabulary_.find(piece);
    if (whole && is_whole_[*whole] && !options_.is_never(*whole)) {
      tokens.push_back(*whole);
      return;
    }
  }
  const size_t first = tokens.size();
  append_symbols(piece, tokens);
  merge(tokens, first);
}

// An unknown token waits until a known one follows; what falls back to bytes passes by it.
void Bpe::append_symbols(std::string_view piece, std::vector<TokenId>& symbols) const {
  bool unknown_waits = false;
  while (!piece.empty()) {
    const size_t size = options_.is_byte_level ? 1 : first_character(piece).size;
    const std::string_view symbol = piece.substr(0, size);
    piece.remove_prefix(size);
    const TokenId token =
        size == 1 ? of_byte_[static_cast<uint8_t>(symbol[0])] : vocabulary_.find(symbol).value_or(kNone);
    if (token != kNone) {
      if (std::exchange(unknown_waits, false)) symbols.push_back(*options_.unknown);
      symbols.push_back(token);
      continue;
    }
    if (append_fallback(symbol, symbols) || !options_.unknown) continue;
    if (unknown_waits && !options_.fuse_unknown) symbols.push_back(*options_.unknown);
    unknown_waits = true;
  }
  if (unknown_waits) symbols.push_back(*options_.unknown);
}

bool Bpe::append_fallback(std::string_view character, std::vector<TokenId>& symbols) const {
  if (!options_.byte_fallback) return false;
  for (const char byte : character)
    if (fallback_of_[static_cast<uint8_t>(byte)] == kNone) return false;
  for (const char byte : character) symbols.push_back(fallback_of_[static_cast<uint8_t>(byte)]);
  return true;
}

void Bpe::merge(std::vector<TokenId>& tokens, size_t first) const {
  if (tokens.size() - first <= kFew) return merge_few(tokens, first);
  merge_many(tokens, first);
}

void Bpe::merge_few(std::vector<TokenId>& tokens, size_t first) const {
  TokenId* const symbols = tokens.data() + first;
  size_t count = tokens.size() - first;
  std::array<MergeTable::Merge, kFew> merges;  // of symbol i with the next one
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = merges_.find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      if (merges[i].rank < merges[best].rank) best = i;
    if (merges[best].rank == MergeTable::kNoRank) break;
    symbols[best] = merges[best].token;
    std::copy(symbols + best + 2, symbols + count, symbols + best + 1);
    std::copy(merges.begin() + static_cast<std::ptrdiff_t>(best) + 1,
              merges.begin() + static_cast<std::ptrdiff_t>(count) - 1,
              merges.begin() + static_cast<std::ptrdiff_t>(best));
    --count;
    if (best > 0) merges[best - 1] = merges_.find(symbols[best - 1], symbols[best]);
    if (best + 1 < count) merges[best] = merges_.find(symbols[best], symbols[best + 1]);
  }
  tokens.resize(first + count);
}

namespace {

// The symbols of a long piece, in a list, and the pairs that merge, the next one on top of a heap. A pair on
// the heap may have changed since: its rank says so.
class LongPiece {
 public:
  LongPiece(std::vector<TokenId>& tokens, size_t first, const MergeTable& merges)
      : tokens_(tokens), first_(first), merges_(merges), nodes_(tokens.size() - first) {
    for (uint32_t i = 0; i < nodes_.size(); ++i) nodes_[i] = {tokens[first + i], i - 1, i + 1};
    for (uint32_t i = 0; i < nodes_.size(); ++i) offer(i);
  }

  void merge_all() {
    while (!heap_.empty()) {
      const uint64_t top = heap_.top();
      heap_.pop();
      merge(static_cast<uint32_t>(top), static_cast<uint32_t>(top >> 32));
    }
    size_t count = 0;
    for (uint32_t i = 0; i < nodes_.size(); i = nodes_[i].next) tokens_[first_ + count++] = nodes_[i].token;
    tokens_.resize(first_ + count);
  }

 private:
  struct Node {
    TokenId token;
    uint32_t previous, next;  // beyond the end: none
  };
  static constexpr TokenId kGone = UINT32_MAX;

  MergeTable::Merge merge_at(uint32_t i) const {
    const uint32_t next = nodes_[i].next;
    if (nodes_[i].token == kGone || next >= nodes_.size()) return {};
    return merges_.find(nodes_[i].token, nodes_[next].token);
  }
  void offer(uint32_t i) {
    const MergeTable::Merge found = merge_at(i);
    if (found.rank != MergeTable::kNoRank) heap_.push(uint64_t{found.rank} << 32 | i);
  }
  void merge(uint32_t i, uint32_t rank) {
    const MergeTable::Merge found = merge_at(i);
    if (found.rank != rank) return;
    const uint32_t next = nodes_[i].next, after = nodes_[next].next;
    nodes_[i].token = found.token;
    nodes_[i].next = after;
    nodes_[next].token = kGone;
    if (after < nodes_.size()) nodes_[after].previous = i;
    if (nodes_[i].previous < nodes_.size()) offer(nodes_[i].previous);
    offer(i);
  }

  std::vector<TokenId>& tokens_;
  const size_t first_;
  const MergeTable& merges_;
  std::vector<Node> nodes_;
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> heap_;  // rank, then place
};

}  // namespace

void Bpe::merge_many(std::vector<TokenId>& tokens, size_t first) const {
  LongPiece(tokens, first, merges_).merge_all();
}

std::optional<std::vector<std::string>> Bpe::joined_before(std::string_view mark) const {
  if (options_.is_byte_level || options_.ignore_merges || !vocabulary_.find(mark)) return std::nullopt;
  const std::string_view unknown =
      options_.unknown ? vocabulary_.text(*options_.unknown) : std::string_view();
  std::set<std::string, std::less<>> joined;
  for (TokenId id = 0; id < vocabulary_.size(); ++id) {
    const std::string_view token = vocabulary_.text(id);
    for (size_t at = token.find(mark, 1); at != std::string_view::npos; at = token.find(mark, at + 1)) {
      const std::string_view before = token.substr(0, at);
      if (before.ends_with(mark)) continue;
      // Of such a token's name the text does not have the last character.
      const bool is_name = (!unknown.empty() && before.ends_with(unknown)) ||
                           (at >= 6 && byte_of_fallback(before.substr(at - 6)));
      if (is_name || joined.size() == kJoinedMax) return std::nullopt;
      joined.emplace(last_character(before));
    }
  }
  return std::vector<std::string>(joined.begin(), joined.end());
}

}  // namespace weft::text
