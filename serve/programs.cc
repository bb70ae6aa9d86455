#include "serve/programs.h"

#include <algorithm>

#include "dag/lower.h"
#include "dag/op_table.h"
#include "dag/state.h"
#include "peer/program.h"
#include "peer/scratch.h"

namespace weft::serve {

using dag::DType;
using dag::Incremental;
using dag::RowSpec;

void Program::bind(std::string_view name, peer::View view) {
  const auto values = bound.find(name);
  if (values == bound.end()) return;
  for (const dag::ValueId value : values->second) executor->bind(*memory, value, view);
}

Programs::Programs(std::shared_ptr<const Incremental> model, std::shared_ptr<peer::State> state)
    : model_(std::move(model)),
      state_(std::move(state)),
      backend_(state_->backend()),
      scratch_(std::make_shared<peer::Scratch>(backend_)) {}

Status Programs::load(const dag::Weights& weights, std::span<const PartRange> ranges) {
  std::map<std::string, dag::TensorSpec> wanted;
  const auto add = [&](const dag::Graph& graph) {
    for (const dag::Initializer& initializer : graph.initializers())
      wanted.emplace(initializer.name, graph.spec(initializer.value));
  };
  for (const PartRange& range : ranges)
    for (uint32_t part = range.begin; part < range.end; ++part)
      add(part % 2 == 0 ? model_->rows(part / 2, 1) : model_->attending(part / 2, 1, 1));
  std::vector<peer::State::Claim> claims;
  std::erase_if(wanted,
                [&](const auto& one) { return state_->find(dag::of_initializer(one.first)) != nullptr; });
  claims.reserve(wanted.size());
  for (const auto& [name, spec] : wanted) claims.push_back({dag::of_initializer(name), spec});
  WEFT_TRY_STATUS(state_->claim(claims));
  const dag::Weights tables = model_->tables();
  for (const auto& [name, spec] : wanted) {
    auto found = weights.find(name);
    if (found == weights.end()) {
      found = tables.find(name);
      if (found == tables.end())
        return fail(ErrorCode::NotFound, "the model has no weight '" + name.substr(0, 128) + "'");
    }
    WEFT_TRY_STATUS(state_->write(dag::of_initializer(name), found->second));
  }
  return {};
}

int64_t Programs::rounded_rows(int64_t rows) {
  int64_t unit = 1;  // steps of a quarter of the power of two below
  while (unit * 8 <= rows) unit *= 2;
  return (rows + unit - 1) / unit * unit;
}

Result<Program> Programs::make(const dag::Graph& graph) {
  auto lowered = std::make_shared<const dag::Graph>(dag::lower(graph, dag::op_table(), backend_.traits()));
  peer::ExecutorOptions options;
  options.scratch = scratch_;
  options.rows_alone = true;
  Program program;
  const auto bind = [&](const std::string& name, dag::ValueId value) {
    options.bound.push_back(value);
    program.bound[name].push_back(value);
  };
  for (const dag::ValueId input : lowered->inputs()) bind(lowered->value(input).name, input);
  for (const dag::GraphOutput& output : lowered->outputs()) bind(output.name, output.value);
  WEFT_TRY(program.executor, peer::Executor::create(std::move(lowered), state_, std::move(options)));
  WEFT_TRY(program.memory, program.executor->make_microbatch());
  return program;
}

Result<Program*> Programs::rows(size_t part, int64_t rows) {
  const auto known = rows_.find({part, rows});
  if (known != rows_.end()) return &known->second;
  WEFT_TRY(Program made, make(model_->rows(part, rows)));
  return &rows_.emplace(std::pair(part, rows), std::move(made)).first->second;
}

Result<Program*> Programs::attending(size_t part, int64_t rows, int64_t capacity) {
  const auto known = attending_.find({part, rows, capacity});
  if (known != attending_.end()) return &known->second;
  WEFT_TRY(Program made, make(model_->attending(part, rows, capacity)));
  return &attending_.emplace(std::tuple(part, rows, capacity), std::move(made)).first->second;
}

namespace {

struct Life {
  RowSpec spec;
  uint32_t first = UINT32_MAX, last = 0;  // parts, rows and attending counted together
};

std::map<std::string, Life> lives_of(const Incremental& model) {
  std::map<std::string, Life> lives;
  const auto use = [&](const RowSpec& spec, uint32_t part) {
    Life& life = lives[spec.name];
    life.spec = spec;
    life.first = std::min(life.first, part);
    life.last = std::max(life.last, part);
  };
  use(model.tokens(), 0);
  const auto use_all = [&](const dag::PartInterface& interface, uint32_t part) {
    for (const RowSpec& spec : interface.inputs) use(spec, part);
    for (const RowSpec& spec : interface.outputs) use(spec, part);
  };
  for (uint32_t part = 0; part < model.row_parts(); ++part) {
    use_all(model.row_part(part), 2 * part);
    if (part < model.attending_parts()) use_all(model.attending_part(part), 2 * part + 1);
  }
  return lives;
}

}  // namespace

Result<Exchange> Exchange::create(const Incremental& model, int64_t rows, peer::Backend& backend) {
  Exchange exchange;
  std::vector<peer::Block> blocks;
  const std::map<std::string, Life> lives = lives_of(model);
  blocks.reserve(lives.size());
  for (const auto& [name, life] : lives)
    blocks.push_back({backend.storage_bytes({life.spec.dtype, {rows, life.spec.width}}, dag::Layout::Plain),
                      life.first, life.last});
  const Bytes size = peer::place_blocks(blocks, backend.alignment());
  WEFT_TRY(exchange.memory_, backend.allocate(size));
  // Rows that nobody has written are computed on as well: they are to be finite.
  const int64_t element = backend.storage_bytes({DType::U8, {1}}, dag::Layout::Plain).value;
  WEFT_TRY_STATUS(backend.fill_zero({exchange.memory_.get(), 0}, {DType::U8, {size.value / element}}));
  size_t i = 0;
  for (const auto& [name, life] : lives) {
    exchange.places_[name] = {life.spec, blocks[i++].offset, row_bytes(life.spec, backend)};
  }
  return exchange;
}

peer::View Exchange::at(const std::string& name, int64_t row) const {
  const PlaceOf& place = places_.at(name);
  return {memory_.get(), place.offset + row * place.row_bytes};
}

int64_t Exchange::row_bytes(const RowSpec& spec, const peer::Backend& backend) {
  return backend.storage_bytes({spec.dtype, {1, spec.width}}, dag::Layout::Plain).value;
}

}  // namespace weft::serve
