#include "plan/answer.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "plan/constraints.h"
#include "plan/explain.h"
#include "plan/kinds.h"

namespace weft::plan {
namespace {

class Answer {
 public:
  Answer(const Evaluator& evaluator, const Found& found)
      : found_(found),
        chosen_(found.chosen),
        evaluator_(evaluator),
        request_(evaluator.request()),
        devices_(request_.cluster.devices()),
        model_(evaluator.model()) {}

  Plan run() {
    const Prediction prediction = evaluator_.predict_whole(chosen_);
    plan_.stage_of_op = chosen_.stage_of_op;
    for (uint32_t stage = 0; stage < chosen_.in_flight.size(); ++stage)
      plan_.stages.push_back(stage_plan(stage));
    add_links();
    plan_.codecs = chosen_.codecs;
    plan_.predicted_step = prediction.step;
    plan_.predicted_alone = alone();
    plan_.fewer = found_.fewer;
    plan_.timeline = prediction.timeline;
    plan_.critical = prediction.critical;
    plan_.predicted_step_kept = chosen_.kept_step;
    explain_all(prediction);
    return std::move(plan_);
  }

 private:
  StagePlan stage_plan(uint32_t stage) const {
    const StageWork& work = chosen_.pipeline.stages[stage];
    StagePlan planned;
    planned.devices = {chosen_.proposal.devices[stage]};
    planned.microbatches_in_flight = chosen_.in_flight[stage];
    planned.memory =
        work.persistent + work.microbatch * (chosen_.in_flight[stage] + (request_.evaluates ? 1 : 0));
    planned.persistent = work.persistent;
    planned.microbatch = work.microbatch;
    planned.host_memory = work.host;
    planned.pinned = std::any_of(request_.pins.begin(), request_.pins.end(),
                                 [&](const Pin& pin) { return pin.device == planned.devices.front(); });
    for (const Segment& segment : work.segments) {
      (segment.backward ? planned.backward : planned.forward) += segment.compute;
      planned.repeated += segment.repeated;
    }
    planned.recomputes = chosen_.recomputes[stage];
    return planned;
  }

  void add_links() {
    std::map<std::pair<uint32_t, uint32_t>, std::pair<Bytes, Bytes>> bytes;
    for (const Message& message : chosen_.pipeline.messages) {
      auto& [wire, dense] = bytes[{message.from_stage, message.to_stage}];
      wire += message.bytes;
      dense += message.dense;
    }
    for (const auto& [stages, sizes] : bytes)
      plan_.links.push_back({stages.first, stages.second, sizes.first, sizes.second});
  }

  void explain_all(const Prediction& prediction) {
    plan_.explanation =
        explain({&request_, &model_, &plan_, &chosen_.pipeline, &prediction, &chosen_.proposal});
    for (const std::string& line :
         {describe_codecs(chosen_.codecs, chosen_.pipeline, request_.evaluates), describe_schedule(),
          describe_moved(), describe_bits(),
          evaluator_.owners().describe(plan_.stage_of_op, chosen_.proposal.devices)})
      if (!line.empty()) plan_.explanation.push_back(line);
    if (!request_.pins.empty())
      plan_.explanation.push_back("as pinned: " + describe_pins(request_.pins, request_.cluster));
  }

  // What equal bits cost, or what they would have: nothing where there is no choice.
  std::string describe_bits() const {
    std::set<std::string> used;
    for (const StagePlan& stage : plan_.stages) used.insert(devices_[stage.devices.front()].fingerprint);
    if (used.size() > 1)
      return !found_.alike_step ? std::string()
                                : "bits are not promised: devices of " + std::to_string(used.size()) +
                                      " kinds work together; of one kind a step would take " +
                                      show(*found_.alike_step) + " (equal_bits: require)";
    if (request_.equal_bits == EqualBits::Ignore) return {};
    std::string names;
    size_t others = 0;
    for (const DeviceView& device : devices_)
      if (!used.contains(device.fingerprint) && ++others <= kNamesShown)
        names += (names.empty() ? "" : ", ") + device.name;
    if (others == 0) return {};
    if (others > kNamesShown) names += " and " + std::to_string(others - kNamesShown) + " more";
    return "left out, for their bits differ from " + *used.begin() + ": " + names +
           (found_.mixed_step ? "; with them a step would take " + show(*found_.mixed_step) : "") +
           "; equal_bits: ignore uses them too";
  }

  // Empty: 1F1B, or a few more in flight.
  std::string describe_schedule() const {
    const bool all = std::all_of(chosen_.in_flight.begin(), chosen_.in_flight.end(),
                                 [&](uint32_t most) { return most == request_.microbatches; });
    if (!all || chosen_.in_flight.size() < 2 || request_.microbatches <= chosen_.in_flight.size() + 1)
      return {};
    return "all " + std::to_string(request_.microbatches) +
           " microbatches of a step are in flight at once, as GPipe has them: fewer hide less of the latency";
  }
  // Which ops lie with another stage than their neighbours.
  std::string describe_moved() const {
    std::string text;
    for (const auto& [position, stage] : chosen_.proposal.moved)
      text += (text.empty() ? "out of the row: " : ", ") + name_of_position(position) + " on stage " +
              std::to_string(stage + 1);
    return text;
  }
  std::string name_of_position(uint32_t position) const {
    const auto ops = request_.graph->ops();
    for (uint32_t i = 0; i < ops.size(); ++i)
      if (model_.position_of_op[i] == position && ops[i].phase == dag::Phase::Forward &&
          !ops[i].inputs.empty())
        return ops[i].name.empty() ? std::string(to_string(ops[i].kind)) : "'" + ops[i].name + "'";
    return "an op";
  }

  // The whole job on the fastest of the devices.
  Duration alone() const {
    double best = std::numeric_limits<double>::infinity();
    for (const DeviceView& device : devices_) {
      const auto each =
          seconds_of_positions(model_, device.device_class, device.rates, request_.microbatches > 1);
      double step = 0;
      for (const double position : each) step += position * request_.microbatches;
      const auto& held = model_.held_before;
      step += update_seconds({held.parameters.back()}, request_.beside(), device.rates) +
              static_cast<double>(held.parameter_count.back()) * device.rates.kernel_seconds;
      best = std::min(best, step);
    }
    return Duration(static_cast<int64_t>(std::min(best, 1e9) * 1e9));
  }

  const Found& found_;
  const CandidatePlan& chosen_;
  const Evaluator& evaluator_;
  const PlanRequest& request_;
  const std::vector<DeviceView>& devices_;
  const Model& model_;
  Plan plan_;
};

}  // namespace

Plan make_answer(const Evaluator& evaluator, const Found& found) { return Answer(evaluator, found).run(); }

}  // namespace weft::plan
