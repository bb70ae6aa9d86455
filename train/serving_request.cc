#include "train/serving_request.h"

#include <algorithm>
#include <map>
#include <memory>

#include "dag/lower.h"
#include "dag/op_table.h"
#include "plan/cost.h"
#include "serve/stage.h"

namespace weft::train {
namespace {

using dag::Graph;
using dag::Incremental;
using dag::ValueId;
using plan::GroupCost;

constexpr uint32_t kPartsMax = 2048;  // of any model that is known: a few hundred

// What passes are timed at: one row, and as many as there may be.
struct PartCosts {
  std::vector<GroupCost> one, many;
};

double seconds_of_all(const std::vector<GroupCost>& costs, const plan::Rates& rates) {
  double sum = 0;
  for (const GroupCost& cost : costs) sum += seconds_of(cost, rates);
  return sum;
}

// The most bytes of values that are there at once while the ops run in their order.
class LiveBytes {
 public:
  explicit LiveBytes(const Graph& graph) : graph_(graph), root_(graph.values().size()) {
    for (uint32_t v = 0; v < root_.size(); ++v) root_[v] = v;
    for (uint32_t op = 0; op < graph.ops().size(); ++op) look_at(op);
  }
  int64_t most() const {
    int64_t now = 0, most = 0;
    std::map<uint32_t, int64_t> ends;  // by op: what nobody needs behind it
    for (uint32_t op = 0; op < graph_.ops().size(); ++op) {
      for (const ValueId output : graph_.ops()[op].outputs) {
        if (root_[output.index] != output.index || graph_.ops()[op].inputs.empty()) continue;
        const int64_t bytes = graph_.spec(output).bytes().value;
        const auto last = last_.find(output.index);
        now += bytes;
        ends[last == last_.end() ? op : last->second] += bytes;
      }
      most = std::max(most, now);
      if (const auto end = ends.find(op); end != ends.end()) now -= end->second;
    }
    return most;
  }

 private:
  void look_at(uint32_t index) {
    const dag::Op& op = graph_.ops()[index];
    if (!op.inputs.empty() && is_view(graph_, op)) root_[op.outputs[0].index] = root_[op.inputs[0].index];
    for (const ValueId input : op.inputs)
      if (input.valid()) last_[root_[input.index]] = index;
  }

  const Graph& graph_;
  std::vector<uint32_t> root_;         // by value: what it is a view of
  std::map<uint32_t, uint32_t> last_;  // reader
};

class RequestMaker {
 public:
  RequestMaker(const configs::Job& job, const ServedDecoder& decoder,
               std::span<const dag::BackendTraits> classes)
      : decoder_(decoder), parts_(*decoder.parts), classes_(classes) {
    request_.context = static_cast<uint64_t>(parts_.context());
    request_.sequences_max = job.serve->sequences_max;
    request_.rows_max = job.serve->rows_max;
    request_.objective = job.serve->objective;
    request_.stages = job.placement.stages;
    request_.equal_bits = job.placement.equal_bits;
  }

  Result<plan::ServingRequest> run(const plan::ClusterView& cluster) {
    const uint32_t count = serve::part_count(parts_);
    if (count > kPartsMax)
      return fail(ErrorCode::Unsupported, "the model falls into " + std::to_string(count) +
                                              " parts, and at most " + std::to_string(kPartsMax) +
                                              " are dealt to stages");
    for (const dag::Initializer& initializer : decoder_.model.graph->initializers()) {
      index_.emplace(initializer.name, static_cast<uint32_t>(request_.weight_bytes.size()));
      request_.weight_bytes.push_back(decoder_.model.graph->spec(initializer.value).bytes().value);
    }
    for (const std::string& name : parts_.read_weights())
      request_.weights_everywhere.push_back(index_.at(name));
    costs_->resize(classes_.size());
    for (uint32_t part = 0; part < count; ++part) add(part);
    add_exchange();
    request_.cluster = cluster;
    request_.seconds = timing();
    return std::move(request_);
  }

 private:
  Graph graph_of(uint32_t part, int64_t rows, int64_t capacity) const {
    return part % 2 == 0 ? parts_.rows(part / 2, rows) : parts_.attending(part / 2, rows, capacity);
  }

  void add(uint32_t part) {
    const auto rows = static_cast<int64_t>(request_.rows_max);
    const int64_t context = parts_.context();
    plan::ServedPart& made = request_.parts.emplace_back();
    // On its way a sequence is half as long as it may become.
    const Graph one = graph_of(part, 1, std::max<int64_t>(1, context / 2));
    const Graph many = graph_of(part, rows, context);
    for (const dag::Initializer& initializer : one.initializers())
      if (const auto weight = index_.find(initializer.name); weight != index_.end())
        made.weights.push_back(weight->second);
    made.work_bytes = LiveBytes(many).most();
    for (const dag::RowSpec& spec : serve::rows_before(parts_, part))
      made.row_bytes += dag::TensorSpec{spec.dtype, {spec.width}}.bytes().value;
    if (part % 2 == 1)
      for (const dag::CacheSpec& cache : parts_.attending_part(part / 2).caches)
        made.cache_bytes += cache.bytes_a_position().value;
    for (size_t c = 0; c < classes_.size(); ++c) {
      PartCosts& costs = (*costs_)[c].emplace_back();
      costs.one = plan::group_costs(lower(one, dag::op_table(), classes_[c]));
      if (rows > 1) costs.many = plan::group_costs(lower(many, dag::op_table(), classes_[c]));
    }
  }

  // Rows on their way from part to part lie in two places, with room for gaps between sequences.
  void add_exchange() {
    int64_t widest = 0;
    for (const plan::ServedPart& part : request_.parts) widest = std::max(widest, part.row_bytes);
    for (plan::ServedPart& part : request_.parts)
      part.work_bytes += 8 * static_cast<int64_t>(request_.rows_max) * widest;
  }

  std::function<plan::PartSeconds(uint32_t, uint32_t)> timing() const {
    std::vector<std::pair<uint32_t, plan::Rates>> devices;
    for (const plan::DeviceView& device : request_.cluster.devices())
      devices.emplace_back(device.device_class, device.rates);
    const double others = static_cast<double>(request_.rows_max) - 1;
    return [costs = costs_, devices = std::move(devices), others](uint32_t device, uint32_t part) {
      const auto& [device_class, rates] = devices[device];
      const PartCosts& of = (*costs)[device_class][part];
      plan::PartSeconds seconds{.first = seconds_of_all(of.one, rates)};
      seconds.same =
          others < 1 ? seconds.first : std::max(0.0, seconds_of_all(of.many, rates) - seconds.first) / others;
      // Attending goes sequence by sequence.
      seconds.more = part % 2 == 1 ? seconds.first : seconds.same;
      return seconds;
    };
  }

  const ServedDecoder& decoder_;
  const Incremental& parts_;
  std::span<const dag::BackendTraits> classes_;
  plan::ServingRequest request_;
  std::map<std::string, uint32_t, std::less<>> index_;
  std::shared_ptr<std::vector<std::vector<PartCosts>>> costs_ =
      std::make_shared<std::vector<std::vector<PartCosts>>>();  // by class, by part
};

// All of it at the entry. A guess is one row through all parts.
Result<plan::DraftLoad> draft_load(const configs::Job& job, const ServedDecoder& draft,
                                   const plan::ClusterView& cluster,
                                   std::span<const dag::BackendTraits> classes) {
  WEFT_TRY(const plan::ServingRequest whole, RequestMaker(job, draft, classes).run(cluster));
  plan::DraftLoad load;
  for (const int64_t bytes : whole.weight_bytes) load.weight_bytes += bytes;
  for (const plan::ServedPart& part : whole.parts) {
    load.work_bytes = std::max(load.work_bytes, part.work_bytes);
    load.cache_bytes += part.cache_bytes;
  }
  const auto parts = static_cast<uint32_t>(whole.parts.size());
  load.seconds = [parts, seconds = whole.seconds](uint32_t device) {
    double sum = 0;
    for (uint32_t part = 0; part < parts; ++part) sum += seconds(device, part).first;
    return sum;
  };
  return load;
}

}  // namespace

Result<plan::ServingRequest> serving_request(const configs::Job& job, const ServedDecoder& decoder,
                                             const plan::ClusterView& cluster,
                                             std::span<const dag::BackendTraits> classes) {
  for (const plan::DeviceView& device : cluster.devices())
    if (device.device_class >= classes.size())
      return fail(ErrorCode::InvalidArgument, "a plan needs the class of device '" + device.name + "'");
  WEFT_TRY(plan::ServingRequest request, RequestMaker(job, decoder, classes).run(cluster));
  if (job.serve->draft.kind != plan::DraftKind::None) request.draft.emplace();
  if (decoder.draft) {
    WEFT_TRY(request.draft, draft_load(job, *decoder.draft, cluster, classes));
  }
  return request;
}

}  // namespace weft::train
