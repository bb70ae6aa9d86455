// Internal to serve: the executors of an incremental model's parts, for the numbers of rows and the
// capacities that come up, all on one copy of the weights; and the memory in which rows pass from part to
// part.
#pragma once

#include <map>
#include <memory>
#include <tuple>

#include "dag/incremental/incremental.h"
#include "peer/executor.h"
#include "serve/stage.h"

namespace weft::serve {

// One part at one size.
struct Program {
  std::unique_ptr<peer::Executor> executor;
  std::unique_ptr<peer::MicrobatchMemory> memory;
  std::map<std::string, std::vector<dag::ValueId>, std::less<>> bound;  // by name: inputs, outputs

  // Every value of that name lies there; one that the graph does not have is passed over.
  void bind(std::string_view name, peer::View view);
  Status run() { return executor->run(*memory); }
};

class Programs {
 public:
  Programs(std::shared_ptr<const dag::Incremental> model, std::shared_ptr<peer::State> state);
  // Claims the weights of these parts, and writes those that the state lacked. Errors: NotFound for one that
  // is missing.
  Status load(const dag::Weights& weights, std::span<const PartRange> ranges);

  Result<Program*> rows(size_t part, int64_t rows);
  Result<Program*> attending(size_t part, int64_t rows, int64_t capacity);

  // Numbers of rows for which there are programs: one at least, at most a third above what is asked.
  static int64_t rounded_rows(int64_t rows);

 private:
  Result<Program> make(const dag::Graph& graph);

  std::shared_ptr<const dag::Incremental> model_;
  std::shared_ptr<peer::State> state_;
  peer::Backend& backend_;
  std::shared_ptr<peer::Scratch> scratch_;
  std::map<std::pair<size_t, int64_t>, Program> rows_;
  std::map<std::tuple<size_t, int64_t, int64_t>, Program> attending_;
};

// Memory for the values that pass between parts, by name: each may be `rows` long, and is there from the part
// that makes it to the last that reads it. The tokens and the logits are among them.
class Exchange {
 public:
  static Result<Exchange> create(const dag::Incremental& model, int64_t rows, peer::Backend& backend);
  // From row `row` on. Not every row begins where the device can address it (Backend::alignment()).
  peer::View at(const std::string& name, int64_t row = 0) const;
  static int64_t row_bytes(const dag::RowSpec& spec, const peer::Backend& backend);
  const dag::RowSpec& spec(const std::string& name) const { return places_.at(name).spec; }

 private:
  struct PlaceOf {
    dag::RowSpec spec;
    int64_t offset = 0, row_bytes = 0;
  };
  std::unique_ptr<peer::Memory> memory_;
  std::map<std::string, PlaceOf> places_;
};

}  // namespace weft::serve
