#include "text/added_tokens.h"

#include <algorithm>

#include "text/blanks.h"

namespace weft::text {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  const auto before = [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; };
  const auto same = [](const AddedToken& a, const AddedToken& b) { return a.content == b.content; };
  std::stable_sort(tokens_.begin(), tokens_.end(), before);
  tokens_.erase(std::unique(tokens_.begin(), tokens_.end(), same), tokens_.end());
  for (const AddedToken& token : tokens_) begins_[static_cast<uint8_t>(token.content[0])] = true;
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto found = std::partition_point(tokens_.begin(), tokens_.end(),
                                          [&](const AddedToken& token) { return token.content < content; });
  return found != tokens_.end() && found->content == content ? &*found : nullptr;
}

// Byte by byte the tokens that begin as the text does become fewer.
const AddedToken* AddedTokens::longest_at(std::string_view text) const {
  const AddedToken* longest = nullptr;
  auto first = tokens_.begin(), last = tokens_.end();
  for (size_t at = 0; at < text.size() && first != last; ++at) {
    const auto byte = static_cast<uint8_t>(text[at]);
    const auto byte_of = [&](const AddedToken& token) {  // -1: it has ended
      return at < token.content.size() ? static_cast<int>(static_cast<uint8_t>(token.content[at])) : -1;
    };
    first = std::partition_point(first, last, [&](const AddedToken& token) { return byte_of(token) < byte; });
    last = std::partition_point(first, last, [&](const AddedToken& token) { return byte_of(token) == byte; });
    if (first != last && first->content.size() == at + 1) longest = &*first;
  }
  return longest;
}

std::vector<AddedPart> AddedTokens::split(std::string_view text, bool with_special) const {
  std::vector<AddedPart> parts;
  size_t done = 0;
  for (size_t at = 0; at < text.size() && !tokens_.empty();) {
    const AddedToken* const token =
        begins_[static_cast<uint8_t>(text[at])] ? longest_at(text.substr(at)) : nullptr;
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + token->content.size();
    at = end;
    if (token->is_special && !with_special) continue;
    if (token->is_single_word &&
        (ends_with_word(text.substr(0, begin)) || begins_with_word(text.substr(end))))
      continue;
    if (token->takes_left) begin -= trailing_blanks(text.substr(done, begin - done));
    if (token->takes_right) end += leading_blanks(text.substr(end));
    if (begin > done) parts.push_back({text.substr(done, begin - done), std::nullopt});
    parts.push_back({text.substr(begin, end - begin), token->id});
    at = done = end;
  }
  if (done < text.size()) parts.push_back({text.substr(done), std::nullopt});
  return parts;
}

}  // namespace weft::text
