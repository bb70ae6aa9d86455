// Passes that have begun and have not come back: what each has of which sequence, and which ends it tells.
// Internal to serve.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace weft::serve {

// What a sequence has of a pass.
struct PassTurn {
  uint64_t id = 0;
  int64_t rows = 0;
  int64_t logits = 0;  // of its last rows: all that is known will have been computed
  uint64_t epoch = 0;
  std::vector<int64_t> guesses{};  // its last rows

  bool is_guessed() const { return rows == static_cast<int64_t>(guesses.size()); }
  int64_t add(std::vector<int64_t> more);  // guesses; how many
};

class PassesUnderWay {
 public:
  struct Pass {
    std::vector<PassTurn> turns;
    std::vector<uint64_t> ends;
    bool is_empty() const { return turns.empty() && ends.empty(); }
  };
  // Behind this number.
  explicit PassesUnderWay(uint64_t last) : last_(last) {}

  uint64_t begin(Pass pass);  // its number
  // It has come back. Nothing: it is not under way; or, with `in_order`, it is not the first.
  std::optional<Pass> take(uint64_t number, bool in_order);
  // None of them will come back: what they had, and what they tell is told again.
  std::vector<Pass> take_all();
  const std::vector<PassTurn>* turns_of(uint64_t number) const;
  size_t size() const { return passes_.size(); }
  size_t guessed_alone() const;  // those that have nothing but guesses
  void number_behind(uint64_t number) { last_ = number > last_ ? number : last_; }

  // A sequence that was in a pass has ended; some pass is to tell that.
  void ended(uint64_t sequence) { ended_.push_back(sequence); }
  // At most so many of them, for the next pass.
  std::vector<uint64_t> take_ends(size_t most);
  void tell_again(const Pass& pass) { ended_.insert(ended_.end(), pass.ends.begin(), pass.ends.end()); }

 private:
  uint64_t last_;
  std::map<uint64_t, Pass> passes_;
  std::vector<uint64_t> ended_;  // none has told them yet
};

}  // namespace weft::serve
