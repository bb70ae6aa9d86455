#include "plan/explain.h"

#include <algorithm>
#include <cstdio>

#include "dag/cut.h"
#include "plan/placement.h"

namespace weft::plan {
namespace {

// Three digits that count.
std::string number(double value) {
  char text[32];
  const int decimals = value >= 99.95 || value == 0 ? 0 : value >= 9.995 ? 1 : 2;
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

std::string show_seconds(double seconds) { return show(Duration(static_cast<int64_t>(seconds * 1e9))); }

std::string name_of(const dag::Op& op) {
  return op.name.empty() ? std::string(to_string(op.kind)) : "'" + op.name + "'";
}

std::string show_ops(uint32_t ops) { return std::to_string(ops) + (ops == 1 ? " op" : " ops"); }

template <typename T>
std::string range(const std::pair<T, T>& ends) {
  const std::string least = show(ends.first), most = show(ends.second);
  return least == most ? most : least + " to " + most;
}

using dag::ValueId;

constexpr size_t kStageLines = 2;      // of more stages the ranges are said
constexpr size_t kNames = 6;           // of devices
constexpr const char* kDetail = "  ";  // before a line that is no part of the summary

class Explainer {
 public:
  explicit Explainer(const Explained& what)
      : what_(what), plan_(*what.plan), cluster_(what.request->cluster), count_(plan_.stages.size()) {}

  std::vector<std::string> run() {
    if (plan_.fewer) lines_.push_back(fewer_line());
    if (count_ <= kStageLines) {
      for (uint32_t s = 0; s < count_; ++s) lines_.push_back(short_line(s));
    } else {
      lines_.push_back(stages_line());
      lines_.push_back(links_line());
    }
    if (!plan_.fewer) lines_.push_back(bottleneck_line());
    lines_.push_back(summary_line());
    if (auto line = guesses_line(); !line.empty()) lines_.push_back(std::move(line));
    if (plan_.fewer) lines_.push_back(kDetail + bottleneck_line());
    lines_.push_back(kDetail + ("critical path: " + describe(plan_.critical)));
    if (std::any_of(plan_.stages.begin(), plan_.stages.end(),
                    [](const auto& stage) { return stage.recomputes; }))
      lines_.push_back(kDetail + kept_line());
    for (uint32_t s = 0; s < count_; ++s) {
      lines_.push_back(kDetail + stage_line(s));
      // Of a plan with pieces out of the row nobody moves a border alone.
      if (s > 0 && what_.proposal->moved.empty()) lines_.push_back(kDetail + cut_line(s));
    }
    if (is_ring()) lines_.push_back(kDetail + tail_line());
    return std::move(lines_);
  }

 private:
  const DeviceView& device(uint32_t stage) const {
    return cluster_.devices()[plan_.stages[stage].devices[0]];
  }
  LinkView link(uint32_t from, uint32_t to) const {
    return cluster_.link(plan_.stages[from].devices[0], plan_.stages[to].devices[0]);
  }
  std::string stage_name(uint32_t stage) const { return "stage " + std::to_string(stage + 1); }

  bool is_ring() const { return what_.proposal->is_ring(*what_.model); }
  bool is_in_tail(uint32_t op) const {
    return what_.model->position_of_op[op] >= what_.proposal->ends.back();
  }

  // First and last forward op that computes, before a ring's tail or in it.
  std::pair<const dag::Op*, const dag::Op*> ends(uint32_t stage, bool in_tail = false) const {
    const dag::Op *first = nullptr, *last = nullptr;
    const Model::Class& of = what_.model->classes[device(stage).device_class];
    for (const GroupCost& group : of.groups) {
      const auto is_here = [&](uint32_t op) {
        const uint32_t source = of.lowered->source_op[op].index;
        return plan_.stage_of_op[source] == stage && is_in_tail(source) == in_tail;
      };
      if (!group.has_kernel || group.phase != dag::Phase::Forward || !is_here(group.begin)) continue;
      if (!first) first = &of.lowered->graph.ops()[group.begin];
      last = &of.lowered->graph.ops()[group.end - 1];
    }
    return {first, last};
  }

  std::string place(uint32_t s) const {
    const DeviceView& on = device(s);
    return on.region.empty() ? on.name : on.name + " (" + on.region + ")";
  }
  Duration microbatch(uint32_t s) const { return plan_.stages[s].forward + plan_.stages[s].backward; }

  std::string short_line(uint32_t s) const {
    return stage_name(s) + " of " + std::to_string(count_) + " on " + place(s) + ": " +
           show_ops(what_.pipeline->stages[s].ops) + (s == 0 ? both_ends() : "") + ", " +
           show(microbatch(s)) + " a microbatch, " + show(plan_.stages[s].memory) + " of memory" + again(s);
  }
  std::string both_ends() const {
    if (!is_ring()) return {};
    const ValueId tied = largest_tie();
    return tied.valid() ? ", first and last ones, for they share " + tie_name(tied) : ", first and last ones";
  }
  std::string again(uint32_t s) const {
    const StagePlan& stage = plan_.stages[s];
    return stage.recomputes
               ? "; of that " + show(stage.repeated) + " to make forward values again instead of keeping them"
               : "";
  }

  // The least and the most of all stages.
  template <typename Of>
  auto ends_of(const Of& of) const {
    auto ends = std::pair(of(0u), of(0u));
    for (uint32_t s = 1; s < count_; ++s) ends = {std::min(ends.first, of(s)), std::max(ends.second, of(s))};
    return ends;
  }

  std::string stages_line() const {
    std::string line = std::to_string(count_) + " stages on ";
    for (uint32_t s = 0; s < std::min<size_t>(count_, kNames); ++s) line += (s > 0 ? ", " : "") + place(s);
    if (count_ > kNames) line += " and " + std::to_string(count_ - kNames) + " more";
    const auto [fewest, most] = ends_of([&](uint32_t s) { return what_.pipeline->stages[s].ops; });
    line += ": " + (fewest == most ? "" : std::to_string(fewest) + " to ") + show_ops(most);
    line += ", " + range(ends_of([&](uint32_t s) { return microbatch(s); })) + " a microbatch";
    if (is_ring()) line += ", " + stage_name(0) + " with first and last ops";
    line += ", " + range(ends_of([&](uint32_t s) { return plan_.stages[s].memory; })) + " of memory";
    const auto repeat = std::count_if(plan_.stages.begin(), plan_.stages.end(),
                                      [](const StagePlan& stage) { return stage.recomputes; });
    if (repeat == 0) return line;
    const Duration longest = ends_of([&](uint32_t s) { return plan_.stages[s].repeated; }).second;
    return line + "; " + std::to_string(repeat) + (repeat == 1 ? " makes" : " make") +
           " forward values again instead of keeping them, up to " + show(longest) + " a microbatch";
  }

  double seconds_of(const PlannedLink& planned) const {
    const LinkView over = link(planned.from_stage, planned.to_stage);
    return static_cast<double>(planned.bytes.value) / over.bytes_per_second + seconds(over.latency);
  }
  std::string links_line() const {
    const auto less_bytes = [](const PlannedLink& a, const PlannedLink& b) { return a.bytes < b.bytes; };
    const auto less_time = [&](const PlannedLink& a, const PlannedLink& b) {
      return seconds_of(a) < seconds_of(b);
    };
    const auto& links = plan_.links;
    if (links.empty()) return "nothing is sent from stage to stage";
    const auto [least, most] = std::minmax_element(links.begin(), links.end(), less_bytes);
    const PlannedLink& slowest = *std::max_element(links.begin(), links.end(), less_time);
    return std::to_string(links.size()) + " links carry " + range(std::pair(least->bytes, most->bytes)) +
           " a microbatch; the slowest from " + stage_name(slowest.from_stage) + " to " +
           stage_name(slowest.to_stage) + ": " + show(slowest.bytes) + " over " +
           show(link(slowest.from_stage, slowest.to_stage));
  }

  std::string stage_line(uint32_t s) const {
    const StagePlan& stage = plan_.stages[s];
    const DeviceView& on = device(s);
    std::string line = stage_name(s) + " of " + std::to_string(count_) + " on " + place(s) + ": " +
                       show_ops(what_.pipeline->stages[s].ops);
    if (const auto [first, last] = ends(s); first)
      line += " from " + name_of(*first) + " to " + name_of(*last);
    line += ", forward " + show(stage.forward);
    if (stage.backward.count() > 0) line += ", backward " + show(stage.backward) + again(s);
    line += ", " + show(stage.memory) + " of " + show(on.memory) + " with " +
            std::to_string(stage.microbatches_in_flight) + " in flight";
    for (const PlannedLink& planned : plan_.links)
      if (planned.from_stage == s)
        line += "; sends " + show(planned.bytes) + " a microbatch to " + stage_name(planned.to_stage) +
                " over " + show(link(s, planned.to_stage));
    return line;
  }

  // What the neighbouring cuts would have cost.
  std::string cut_line(uint32_t s) const {
    const PartitionProblem problem = problem_of(*what_.request, *what_.model, *what_.proposal);
    const auto& ends = what_.proposal->ends;
    const uint32_t cut = ends[s - 1], begin = s > 1 ? ends[s - 2] : 0, end = ends[s];
    const auto worst = [&](uint32_t at) {
      return std::max(problem.cost(s - 1, begin, at).bottleneck, problem.cost(s, at, end).bottleneck);
    };
    const auto crossing = [&](uint32_t at) {
      return Bytes{problem.crossing().received(at, end) + problem.crossing().returned(at, end)};
    };
    std::string line = "cut before " + stage_name(s) + ": " + show(crossing(cut)) +
                       " cross, the longer of both stages " + show_seconds(worst(cut)) + " a microbatch";
    if (cut > problem.first_end(s - 1, begin))
      line += "; one place earlier " + show(crossing(cut - 1)) + " and " + show_seconds(worst(cut - 1));
    if (cut + 1 < end)
      line += "; one place later " + show(crossing(cut + 1)) + " and " + show_seconds(worst(cut + 1));
    return line;
  }

  std::string line_name(const char* way, uint32_t s, double rate) const {
    return "the " + std::string(way) + "link of " + device(s).name + " (" + show(LinkView{rate}) + "), of " +
           stage_name(s);
  }
  // What the first stage makes in the one of its pieces for the other: the largest such value.
  ValueId largest_tie() const {
    const dag::Graph& graph = *what_.request->graph;
    const std::vector<bool> copied = dag::copied_leaves(graph);
    ValueId largest;
    for (const dag::Op& op : graph.ops()) {
      if (op.phase != dag::Phase::Forward || op.outputs.empty() ||
          !is_in_tail(graph.value(op.outputs[0]).producer.index))
        continue;
      for (const ValueId input : op.inputs) {
        if (!input.valid()) continue;
        const uint32_t from = graph.value(input).producer.index;
        if (is_in_tail(from) || plan_.stage_of_op[from] != 0 || copied[from]) continue;
        if (!largest.valid() || graph.spec(largest).bytes() < graph.spec(input).bytes()) largest = input;
      }
    }
    return largest;
  }
  std::string tie_name(ValueId value) const {
    const dag::Graph& graph = *what_.request->graph;
    for (const auto& initializer : graph.initializers())
      if (initializer.value == value) return "'" + initializer.name + "'";
    return "what " + name_of(graph.producer(value)) + " makes";
  }
  std::string tail_line() const {
    std::string line = stage_name(0) + " also has the last ops";
    if (const auto [first, last] = ends(0, /*in_tail=*/true); first)
      line += ", from " + name_of(*first) + " to " + name_of(*last);
    if (const ValueId tied = largest_tie(); tied.valid())
      line += ", for they share " + tie_name(tied) + " (" + show(what_.request->graph->spec(tied).bytes()) +
              ") with the first";
    const uint32_t tail = what_.proposal->ends.back();
    const Crossing &ring = what_.model->ring->crossing, &row = what_.model->crossing;
    return line + ": " + show(Bytes{ring.over(tail)}) + " cross before them, " + show(Bytes{row.over(tail)}) +
           " if another stage had them";
  }

  std::string bottleneck_line() const {
    const Prediction& predicted = *what_.prediction;
    uint32_t busiest = 0;
    for (uint32_t s = 1; s < count_; ++s)
      if (predicted.busy[s] > predicted.busy[busiest]) busiest = s;
    Duration longest = predicted.busy[busiest];
    std::string name = stage_name(busiest) + " on " + device(busiest).name;
    const auto look = [&](Duration busy, const auto& describe) {
      if (busy <= longest) return;
      longest = busy;
      name = describe();
    };
    for (const auto& sending : predicted.sending)
      look(sending.busy, [&] {
        return "the link from " + stage_name(sending.from_stage) + " to " + stage_name(sending.to_stage) +
               " (" + show(link(sending.from_stage, sending.to_stage)) + ")";
      });
    for (uint32_t s = 0; s < count_; ++s) {
      look(predicted.uplink[s], [&] { return line_name("up", s, device(s).uplink); });
      look(predicted.downlink[s], [&] { return line_name("down", s, device(s).downlink); });
    }
    const double share = 100 * seconds(longest) / std::max(1e-12, seconds(plan_.predicted_step));
    char percent[16];
    std::snprintf(percent, sizeof percent, "%.0f%%", std::min(100.0, share));
    return "bottleneck: " + name + ", busy " + show(longest) + " a step, " + percent + " of the time";
  }

  // Empty: every link that carries something was measured.
  std::string guesses_line() const {
    std::string line;
    size_t more = 0;
    for (const PlannedLink& planned : plan_.links) {
      const LinkView over = link(planned.from_stage, planned.to_stage);
      if (!over.is_assumed) continue;
      if (line.empty())
        line = "the link from " + device(planned.from_stage).name + " to " + device(planned.to_stage).name +
               " was never measured and is taken as " + show(over);
      else
        ++more;
    }
    if (more > 0) line += "; so are " + std::to_string(more) + " more";
    return line;
  }

  std::string fewer_line() const {
    const auto& devices = plan_.fewer->devices;
    const double less = 1 - seconds(plan_.fewer->predicted_step) / seconds(plan_.predicted_step);
    std::string line = devices.size() == 1 ? "slower than one machine: " : "slower than fewer stages: ";
    for (size_t i = 0; i < std::min(devices.size(), kNames); ++i)
      line += (i > 0 ? ", " : "") + cluster_.devices()[devices[i]].name;
    if (devices.size() > kNames) line += " and " + std::to_string(devices.size() - kNames) + " more";
    return line + " would take " + with_rate(plan_.fewer->predicted_step) + " a step, " + number(100 * less) +
           "% less";
  }

  std::string kept_line() const {
    return plan_.predicted_step_kept ? "with all forward values kept, fewer microbatches fit in memory at "
                                       "once: the same cut would take " +
                                           with_rate(*plan_.predicted_step_kept)
                                     : "with all forward values kept the cut does not fit in memory";
  }

  std::string with_rate(Duration step) const {
    if (what_.request->samples == 0) return show(step);
    const double rate = static_cast<double>(what_.request->samples) / std::max(1e-9, seconds(step));
    return show(step) + " (" + number(rate) + " samples/s)";
  }
  std::string summary_line() const {
    return "predicted step " + with_rate(plan_.predicted_step) + " for " +
           std::to_string(what_.request->microbatches) +
           (what_.request->microbatches == 1 ? " microbatch" : " microbatches") +
           "; the fastest device alone " + with_rate(plan_.predicted_alone);
  }

  const Explained& what_;
  const Plan& plan_;
  const ClusterView& cluster_;
  size_t count_;
  std::vector<std::string> lines_;
};

}  // namespace

std::string show(Duration duration) {
  const double value = seconds(duration);
  if (value >= 1) return number(value) + " s";
  if (value >= 1e-3) return number(value * 1e3) + " ms";
  return number(value * 1e6) + " us";
}

std::string show(Bytes bytes) {
  const auto value = static_cast<double>(bytes.value);
  if (value >= 0x1p30) return number(value / 0x1p30) + " GiB";
  if (value >= 0x1p20) return number(value / 0x1p20) + " MiB";
  if (value >= 0x1p10) return number(value / 0x1p10) + " KiB";
  return number(value) + " bytes";
}

std::string show(const LinkView& link) {
  const double bits = link.bytes_per_second * 8;
  const std::string rate = bits >= 1e9 ? number(bits / 1e9) + " Gbit/s" : number(bits / 1e6) + " Mbit/s";
  return link.latency.count() > 0 ? rate + " " + show(link.latency) : rate;
}

std::vector<std::string> explain(const Explained& what) { return Explainer(what).run(); }

std::string describe_gain(const Plan& dense, const Plan& compressed) {
  constexpr double kWorthSaying = 1.2;
  const double gain = seconds(dense.predicted_step) / seconds(compressed.predicted_step);
  if (gain < kWorthSaying) return {};
  char times[32];
  std::snprintf(times, sizeof times, "%.2g", gain);
  return "slow links: compression: {policy: auto} would take " + show(compressed.predicted_step) +
         " a step, " + times + " times as fast, on " + std::to_string(compressed.stages.size()) +
         (compressed.stages.size() == 1 ? " stage" : " stages") + "; it changes what is computed a little";
}

}  // namespace weft::plan
