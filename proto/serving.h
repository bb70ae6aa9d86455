// A served model: what its stages run, and what the broker and the entry stage say about requests.
//
// The stages of a served model stand in a ring. Stage 0, the entry, computes its first parts and its last
// ones, draws tokens and tells them to the broker. A pass goes round once: over the links, under
// ProgramKind::Serve, with the pass's number as the step and, as the microbatch, how many numbers that is
// behind the pass sent before. Edge 0 holds the pieces, edge 1 + i the value i of what passes between the two
// parts (serve/pass.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "dag/graph.h"
#include "dag/incremental/part_range.h"
#include "plan/draft_kind.h"
#include "proto/hello.h"

namespace weft::proto {

// Who guesses tokens ahead at the entry (serve/draft.h).
struct ServeDraft {
  plan::DraftKind kind = plan::DraftKind::Ngram;  // not None
  double right = 0;                               // of Coin: the part of its guesses that are right
  // Of Decoder: over the whole sequence, after canonicalise(). Its weights are among the stage's tensors, by
  // the names that draft_name() makes of its own.
  std::shared_ptr<const dag::Graph> graph{};
  std::string tokens{}, logits{};  // an input and an output of it
  // Of the passes under way those that texts share; the others are for guesses alone. 0: all.
  uint32_t passes_shared = 0;
};
inline std::string draft_name(const std::string& initializer) { return "draft/" + initializer; }

// What one stage runs of a served model: some of the parts that dag/incremental makes of the graph.
struct ServeProgram {
  std::shared_ptr<const dag::Graph> graph{};  // over the whole sequence, after canonicalise()
  std::string tokens{}, logits{};             // an input and an output of it
  // Of this stage, ascending. The entry has the first part and the last, in one range or in two; every other
  // stage has one range.
  std::vector<dag::PartRange> ranges{};
  uint32_t rows_max = 64;   // positions of a pass
  uint32_t passes_max = 1;  // under way at once
  uint32_t sequences_max = 64;
  uint64_t positions_max = 0;         // of all sequences together that caches are kept for
  uint64_t kept_positions_max = 0;    // of those whose rows stages keep, for one that comes new behind them
  std::optional<ServeDraft> draft{};  // the entry's alone
};

// What is served, as a job says it and its plan found it.
struct ServedModel {
  std::string name{};           // that requests ask for; empty: nothing is served
  std::string tokenizer{};      // a file of the submission; empty: bytes
  std::string chat_template{};  // by name; empty: it does not chat
  uint64_t context = 0;         // positions of a sequence
  uint64_t vocabulary = 0;
  uint64_t positions_max = 0;  // as in ServeProgram
  uint32_t sequences_max = 0;
  std::string fingerprint{};  // of weights and numerics
};

// Broker to entry: tokens are wanted behind these. A number that the entry has already: what it has drawn
// behind them is told again, and what follows.
struct ServeRequest {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  uint64_t request = 0;               // a number that the broker uses once
  std::vector<int64_t> tokens{};      // the prompt, and what is known to have been drawn
  uint64_t tokens_max = 0;            // behind them; 0: none are wanted, so that the entry lets it go
  double temperature = 1, top_p = 1;  // serve/sampler.h
  uint64_t top_k = 0, seed = 0;
  std::optional<uint32_t> alternatives{};
  std::vector<int64_t> ends{};  // tokens that end it
};
// Broker to entry: nobody wants more of it.
struct CancelRequest {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  uint64_t request = 0;
};
struct ServedToken {
  int64_t token = 0;
  double log_probability = 0;
  std::vector<std::pair<int64_t, double>> alternatives{};
};
enum class ServeEnd : uint8_t {
  Stop = 0,  // a token that ends it
  Length = 1,
  Cancelled = 2,
  Failed = 3,  // with the error
};
// Of a ring: cache positions that are granted, passes that are under way; passes that have come round since
// the last message that told of some, and the positions that they computed. What is lost with a connection is
// not told again.
struct ServeLoad {
  uint64_t positions = 0;
  uint32_t under_way = 0;
  uint32_t passes = 0, rows = 0;
};
// Entry to broker: tokens as they are drawn.
struct ServeProgress {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  uint64_t request = 0;
  uint64_t first = 0;  // position of the first of these tokens in the sequence
  std::vector<ServedToken> tokens{};
  std::optional<ServeEnd> end{};
  std::optional<Error> error{};  // of one that failed
  // Tokens that were guessed ahead for any request, since the last message that told of some; and those of
  // them that were then drawn. What is lost with a connection is not told again.
  uint32_t guesses = 0, guesses_right = 0;
  std::optional<ServeLoad> load{};
};

}  // namespace weft::proto
