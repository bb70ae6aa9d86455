// A request that the engine serves: its text so far, and how much of that is in passes. Internal to serve.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/units.h"
#include "serve/decoder.h"
#include "serve/draft.h"
#include "serve/passes_under_way.h"
#include "serve/request.h"

namespace weft::serve {

struct ServedSequence {
  uint64_t id = 0;
  Request request;
  Listener listener;
  std::unique_ptr<Sequence> sequence;  // of a decoder
  std::vector<int64_t> tokens;         // all that are known
  std::deque<int64_t> guessed{};       // tokens behind them that are in passes
  DraftDepth depth{};
  uint64_t epoch = 0;  // logits of an earlier one are of no use
  int64_t begun = 0;   // positions that are in passes, or have been
  Bytes granted{};
  uint64_t last_pass = 0;  // the last that it was in
  bool cancelled = false;

  int64_t pending() const { return static_cast<int64_t>(tokens.size()) - begun; }
  bool generates() const { return tokens.size() > request.prompt.size() && pending() <= 1; }
  // Whose prompt has rows that are in no pass yet.
  bool reads() const { return pending() > 0 && !generates(); }

  // The tokens of the turn's rows, which are in a pass from here on.
  std::vector<int64_t> take_rows(const PassTurn& turn);
  // What is known, and what is guessed behind that.
  std::vector<int64_t> text() const;
  // The token that was drawn. Where another one was guessed, all behind it is computed again. Whether it had
  // been guessed.
  bool append(int64_t token);
  void forget_guesses();
};

}  // namespace weft::serve
