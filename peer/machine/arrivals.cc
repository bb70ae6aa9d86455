#include "peer/machine/arrivals.h"

#include <algorithm>
#include <string>
#include <utility>

namespace weft::peer {

using proto::ProgramKind;

Arrivals::Arrivals(std::shared_ptr<const proto::AssignStage> assignment, const Options& options)
    : assignment_(std::move(assignment)) {
  uint64_t largest = 0;
  for (const proto::StageProgram& stage : assignment_->programs) {
    programs_[stage.kind] = program_of(stage);
    largest = std::max(largest, programs_.at(stage.kind).data_bytes);
  }
  const auto many = static_cast<uint32_t>(std::min<uint64_t>(
      options.prefetch_bytes / std::max<uint64_t>(largest, 1), options.prefetch_microbatches_max));
  prefetch_ = std::max(options.prefetch_microbatches, many);
}

Arrivals::Program Arrivals::program_of(const proto::StageProgram& stage) {
  Program program;
  program.stage = &stage;
  program.edges_of_segment.resize(stage.segment_count);
  const auto segment_of = [&](dag::ValueId value) {
    return stage.segment_of_op[stage.graph->value(value).producer.index];
  };
  for (uint32_t r = 0; r < stage.receives.size(); ++r) {
    program.edges_of_segment[segment_of(stage.receives[r].value)].push_back(r);
    program.receive_of_edge[stage.receives[r].edge] = r;
  }
  for (const dag::ValueId input : stage.graph->inputs()) {
    const std::string& name = stage.graph->value(input).name;
    if (std::find(stage.data_inputs.begin(), stage.data_inputs.end(), name) == stage.data_inputs.end())
      continue;
    const uint32_t segment = segment_of(input);
    program.data_segment = std::min(program.data_segment.value_or(segment), segment);
    program.data_bytes += static_cast<uint64_t>(stage.graph->spec(input).bytes().value);
  }
  return program;
}

Status Arrivals::on_tensor(const plan::Seat& from, const proto::TensorHeader& header, uint64_t completed) {
  const auto wrong = [&](const std::string& what) {
    return fail(ErrorCode::InvalidArgument, "edge " + std::to_string(header.edge) + ", step " +
                                                std::to_string(header.step) + ", microbatch " +
                                                std::to_string(header.microbatch) + ": " + what);
  };
  const auto in = programs_.find(header.program);
  if (in == programs_.end()) return wrong("its program was not assigned");
  const auto edge = in->second.receive_of_edge.find(header.edge);
  if (edge == in->second.receive_of_edge.end()) return wrong("no such edge comes here");
  const proto::StageProgram& stage = *in->second.stage;
  const proto::EdgeEnd& end = stage.receives[edge->second];
  if (other_end(end, assignment_->seat) != from) return wrong("it belongs to another stage");
  const dag::TensorSpec& spec = stage.graph->spec(end.value);
  if (!(spec == header.spec))
    return wrong("it is " + dag::to_string(header.spec) + ", expected " + dag::to_string(spec));
  if (!proto::may_come_as(header.codec, end.codec))
    return wrong("it comes as " + compress::name(header.codec) + ", expected " + compress::name(end.codec));
  const uint32_t microbatches = assignment_->training.microbatches();
  if (header.program == ProgramKind::Train) {
    if (header.step <= completed || header.step > completed + kStepsAhead) return wrong("it is not its time");
    if (header.microbatch >= microbatches && !proto::is_comparison(header.microbatch))
      return wrong("there is no such microbatch");
  }
  if (tensors_.size() > kStepsAhead * microbatches + 4096) return wrong("too many tensors wait here");
  if (!tensors_[{header.program, header.step, header.microbatch}]
           .try_emplace(edge->second, arrivals_ + 1)
           .second)
    return wrong("it came twice");
  ++arrivals_;
  return {};
}

void Arrivals::on_data(const MicrobatchKey& key, uint64_t sample_position) {
  data_[key] = {sample_position, ++arrivals_};
}

bool Arrivals::are_there(const MicrobatchKey& key, uint32_t segment) const {
  const Program& in = programs_.at(key.program);
  if (in.data_segment && segment >= *in.data_segment && !data_.contains(key)) return false;
  const std::vector<uint32_t>& needed = in.edges_of_segment[segment];
  if (needed.empty()) return true;
  const auto there = tensors_.find(key);
  return there != tensors_.end() &&
         std::all_of(needed.begin(), needed.end(), [&](uint32_t r) { return there->second.contains(r); });
}

std::optional<plan::Seat> Arrivals::last_to_come(const MicrobatchKey& key, uint32_t segment) const {
  const Program& in = programs_.at(key.program);
  uint64_t last = 0;
  if (const auto data = data_.find(key); data != data_.end() && in.data_segment == segment)
    last = data->second.arrival;
  std::optional<plan::Seat> seat;
  for (const uint32_t r : in.edges_of_segment[segment]) {
    const uint64_t arrival = tensors_.at(key).at(r);
    if (arrival > last) last = arrival, seat = other_end(in.stage->receives[r], assignment_->seat);
  }
  return seat;
}

void Arrivals::expect(const Range& range) {
  const auto in = programs_.find(range.program);
  if (in == programs_.end() || !in->second.data_segment) return;
  data_ranges_.push_back({{range.program, range.first_step, range.first_microbatch}, range});
}

std::vector<MicrobatchKey> Arrivals::fetches() {
  std::vector<MicrobatchKey> wanted;
  const uint32_t limit = assignment_->microbatches_in_flight + prefetch_;
  while (!data_ranges_.empty() && data_outstanding_ < limit) {
    auto& [next, of] = data_ranges_.front();
    wanted.push_back(next);
    ++data_outstanding_;
    if (++next.microbatch - of.first_microbatch < of.microbatches) continue;
    next.microbatch = of.first_microbatch;
    if (++next.step > of.last_step) data_ranges_.pop_front();
  }
  return wanted;
}

std::optional<uint64_t> Arrivals::finish(const MicrobatchKey& key) {
  tensors_.erase(key);
  finished_.push_back(key);
  const auto data = data_.find(key);
  if (data == data_.end()) return std::nullopt;
  const uint64_t position = data->second.sample_position;
  data_.erase(data);
  --data_outstanding_;
  return position;
}

}  // namespace weft::peer
