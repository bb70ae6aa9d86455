#include "serve/served_sequence.h"

namespace weft::serve {

std::vector<int64_t> ServedSequence::take_rows(const PassTurn& turn) {
  std::vector<int64_t> rows;
  const int64_t known = turn.rows - static_cast<int64_t>(turn.guesses.size());
  if (known > 0) rows.assign(tokens.begin() + begun, tokens.begin() + begun + known);
  rows.insert(rows.end(), turn.guesses.begin(), turn.guesses.end());
  guessed.insert(guessed.end(), turn.guesses.begin(), turn.guesses.end());
  begun += turn.rows;
  return rows;
}

std::vector<int64_t> ServedSequence::text() const {
  std::vector<int64_t> all = tokens;
  all.insert(all.end(), guessed.begin(), guessed.end());
  return all;
}

bool ServedSequence::append(int64_t token) {
  tokens.push_back(token);
  if (guessed.empty()) {
    depth.count_none();
    return false;
  }
  const bool is_right = guessed.front() == token;
  depth.count(is_right);
  if (is_right) {
    guessed.pop_front();
  } else {
    begun = static_cast<int64_t>(tokens.size()) - 1;
    forget_guesses();
  }
  return is_right;
}

void ServedSequence::forget_guesses() {
  guessed.clear();
  ++epoch;
}

}  // namespace weft::serve
