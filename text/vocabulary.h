// The tokens of a vocabulary: bytes to id, and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/token.h"

namespace weft::text {

inline constexpr size_t kTokensMax = 1'000'000;  // of one vocabulary
inline constexpr size_t kTokenSizeMax = 4096;    // bytes

// Takes some 60 bytes for each token beside its own. Adding and finding take a bounded number of steps,
// whatever the tokens are: where too many of them meet in the table, add() refuses. Read by any threads.
class Vocabulary {
 public:
  // Ids are below `id_limit`.
  explicit Vocabulary(size_t id_limit = kTokensMax) : id_limit_(id_limit) {}

  // Corrupted: the bytes or the id have been added before, or the table is crowded; OutOfRange: an id
  // beyond the limit, too many tokens, or one that is too long.
  Status add(std::string_view bytes, TokenId id);
  // A token that no text is ever encoded to: text() knows it, find() does not.
  Status add_unreachable(std::string_view bytes, TokenId id);

  std::optional<TokenId> find(std::string_view bytes) const;
  bool contains(TokenId id) const { return id < spans_.size() && spans_[id].size != kNone; }
  // Empty for an id that no token has. Lives as long as nothing is added.
  std::string_view text(TokenId id) const;
  size_t token_count() const { return count_; }
  size_t size() const { return spans_.size(); }  // the highest id and one more

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Span {
    uint32_t offset = 0, size = kNone;
  };
  struct Slot {
    uint32_t hash = 0, id = kNone;
    Span span;  // the id's once more: a search looks at the slot and the bytes alone
  };
  Status keep(std::string_view bytes, TokenId id);
  Status place(const Slot& slot);
  Status grow();

  size_t id_limit_;
  std::string bytes_;
  std::vector<Span> spans_;  // by id
  std::vector<Slot> slots_;  // a power of two, at least half of them free
  size_t count_ = 0, placed_ = 0;
};

}  // namespace weft::text
