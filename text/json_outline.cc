#include "text/json_outline.h"

#include <algorithm>

namespace weft::text {
namespace {

constexpr size_t kMembersMax = 256;  // of an object that is outlined

bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

class Scanner {
 public:
  explicit Scanner(std::string_view bytes) : bytes_(bytes) {}

  Result<std::vector<JsonMember>> object() {
    std::vector<JsonMember> members;
    if (!accept('{')) return malformed();
    if (!accept('}')) {
      do {
        WEFT_TRY(const JsonMember member, next_member());
        if (find_member(members, member.key) != nullptr)
          return fail(ErrorCode::Corrupted, "a key comes twice, before byte " + std::to_string(at_));
        if (members.size() == kMembersMax)
          return fail(ErrorCode::OutOfRange, "has more than " + std::to_string(kMembersMax) + " members");
        members.push_back(member);
      } while (accept(','));
      if (!accept('}')) return malformed();
    }
    skip_blanks();
    if (at_ != bytes_.size()) return malformed();
    return members;
  }

 private:
  tl::unexpected<Error> malformed() const {
    return fail(ErrorCode::Corrupted, "is not JSON, or cut off, at byte " + std::to_string(at_) + " of " +
                                          std::to_string(bytes_.size()));
  }
  void skip_blanks() {
    while (at_ < bytes_.size() && is_blank(bytes_[at_])) ++at_;
  }
  bool accept(char c) {
    skip_blanks();
    if (at_ == bytes_.size() || bytes_[at_] != c) return false;
    ++at_;
    return true;
  }
  // Behind the quote that opens it. A quote ends it that an even number of backslashes precedes.
  Status skip_string() {
    const size_t begin = at_;
    while (true) {
      const size_t quote = bytes_.find('"', at_);
      if (quote == std::string_view::npos) {
        at_ = bytes_.size();
        return malformed();
      }
      size_t slashes = 0;
      while (quote - slashes > begin && bytes_[quote - slashes - 1] == '\\') ++slashes;
      at_ = quote + 1;
      if (slashes % 2 == 0) return {};
    }
  }
  Result<JsonMember> next_member() {
    JsonMember member;
    if (!accept('"')) return malformed();
    const size_t key = at_;
    WEFT_TRY_STATUS(skip_string());
    member.key = bytes_.substr(key, at_ - 1 - key);
    if (!accept(':')) return malformed();
    skip_blanks();
    const size_t begin = at_;
    WEFT_TRY(member.value_count, skip_value());
    member.value = bytes_.substr(begin, at_ - begin);
    return member;
  }
  // Up to the comma or bracket behind a value; how many values that is.
  Result<size_t> skip_value() {
    std::array<size_t, kJsonDepthMax> entries;
    size_t depth = 0, count = 1;
    for (; at_ < bytes_.size(); ++at_) {
      switch (bytes_[at_]) {
        case '"':
          ++at_;
          WEFT_TRY_STATUS(skip_string());
          --at_;
          break;
        case '{':
        case '[':
          if (depth + 1 >= kJsonDepthMax)
            return fail(ErrorCode::OutOfRange, "is nested deeper than " + std::to_string(kJsonDepthMax) +
                                                   ", at byte " + std::to_string(at_));
          entries[depth++] = 1;
          ++count;
          break;
        case '}':
        case ']':
          if (depth == 0) return count;
          --depth;
          break;
        case ',':
          if (depth == 0) return count;
          ++count;
          if (++entries[depth - 1] > kJsonEntriesMax)
            return fail(ErrorCode::OutOfRange, "has a list of more than " + std::to_string(kJsonEntriesMax) +
                                                   " entries, at byte " + std::to_string(at_));
          break;
        default:
          break;
      }
    }
    return malformed();
  }

  std::string_view bytes_;
  size_t at_ = 0;
};

}  // namespace

Result<std::vector<JsonMember>> outline_of(std::string_view bytes) { return Scanner(bytes).object(); }

const JsonMember* find_member(const std::vector<JsonMember>& members, std::string_view key) {
  const auto found = std::find_if(members.begin(), members.end(),
                                  [&](const JsonMember& member) { return member.key == key; });
  return found == members.end() ? nullptr : &*found;
}

}  // namespace weft::text
