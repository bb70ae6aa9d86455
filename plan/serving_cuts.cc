#include "plan/serving_cuts.h"

#include <algorithm>
#include <limits>

namespace weft::plan {
namespace {

constexpr double kEndless = std::numeric_limits<double>::infinity();
constexpr uint32_t kUnitsMax = 200;
constexpr uint32_t kHeadsMax = 4;      // how many units the entry may have first, where there are many
constexpr uint32_t kAllHeadsMax = 24;  // units; of more, what it has beside comes last
constexpr double kPieceBytes = 40;     // what says of a row whose it is (serve/pass.h)

double rows_of(const ServingRequest& request) {
  return request.objective == ServeObjective::Latency ? 1 : std::min(request.rows_max, request.sequences_max);
}

// Bytes of weights, each counted once.
class WeightSum {
 public:
  explicit WeightSum(const ServingRequest& request)
      : request_(request), seen_(request.weight_bytes.size(), false) {
    add(request.weights_everywhere);
  }
  void add(const std::vector<uint32_t>& weights) {
    for (const uint32_t weight : weights) {
      if (seen_[weight]) continue;
      seen_[weight] = true;
      bytes_ += request_.weight_bytes[weight];
    }
  }
  int64_t bytes() const { return bytes_; }

 private:
  const ServingRequest& request_;
  std::vector<bool> seen_;
  int64_t bytes_ = 0;
};

}  // namespace

RingProblem::RingProblem(const ServingRequest& request)
    : request_(request),
      adds_(request.objective == ServeObjective::Latency),
      rows_(rows_of(request)),
      rates_(request.cluster.devices().size()) {
  make_units();
  measure_spans();
}

// Of very many parts, cuts where few bytes pass.
void RingProblem::make_units() {
  const auto parts = static_cast<uint32_t>(request_.parts.size());
  const uint32_t width = (parts + kUnitsMax - 1) / kUnitsMax;
  begin_ = {0};
  for (uint32_t low = width > 1 ? width : 1; low < parts; low += width) {
    uint32_t best = low;
    for (uint32_t at = low; at < std::min(parts, low + width); ++at)
      if (request_.parts[at].row_bytes < request_.parts[best].row_bytes) best = at;
    begin_.push_back(best);
  }
  begin_.push_back(parts);
}

void RingProblem::measure_spans() {
  const uint32_t count = units();
  span_.assign(count, std::vector<RingLoad>(count + 1));
  ends_of_.assign(count, std::vector<int64_t>(count + 1));
  for (uint32_t begin = 0; begin < count; ++begin) {
    WeightSum sum(request_);
    RingLoad load{.weights = sum.bytes()};
    span_[begin][begin] = load;
    for (uint32_t end = begin + 1; end <= count; ++end) {
      for (uint32_t part = begin_[end - 1]; part < begin_[end]; ++part) {
        sum.add(request_.parts[part].weights);
        load.cache += request_.parts[part].cache_bytes;
        load.work = std::max(load.work, request_.parts[part].work_bytes);
      }
      load.weights = sum.bytes();
      load.kept = kept_behind(end);
      span_[begin][end] = load;
    }
  }
  for (uint32_t head = 0; head < count; ++head) {
    WeightSum sum(request_);
    for (uint32_t part = 0; part < begin_[head]; ++part) sum.add(request_.parts[part].weights);
    for (uint32_t tail = count; tail-- > head;) {
      for (uint32_t part = begin_[tail]; part < begin_[tail + 1]; ++part)
        sum.add(request_.parts[part].weights);
      ends_of_[head][tail] = sum.bytes();
    }
  }
}

const RingProblem::Rates& RingProblem::rates(uint32_t device) const {
  std::optional<Rates>& known = rates_[device];
  if (known) return *known;
  known.emplace();
  known->first = {0};
  known->more = {0};
  known->same = {0};
  for (uint32_t unit = 0; unit < units(); ++unit) {
    PartSeconds sum{known->first.back(), known->more.back(), known->same.back()};
    for (uint32_t part = begin_[unit]; part < begin_[unit + 1]; ++part) {
      const PartSeconds one = request_.seconds(device, part);
      sum.first += one.first;
      sum.more += one.more;
      sum.same += one.same;
    }
    known->first.push_back(sum.first);
    known->more.push_back(sum.more);
    known->same.push_back(sum.same);
  }
  return *known;
}

double RingProblem::span_seconds(uint32_t device, uint32_t begin, uint32_t end, double rows,
                                 bool of_one) const {
  const Rates& of = rates(device);
  const std::vector<double>& others = of_one ? of.same : of.more;
  return of.first[end] - of.first[begin] + (rows - 1) * (others[end] - others[begin]);
}

double RingProblem::hop(uint32_t from, uint32_t to, uint32_t at, double rows) const {
  const LinkView link = request_.cluster.link(from, to);
  const double bytes = static_cast<double>(request_.parts[begin_[at]].row_bytes) + kPieceBytes;
  // Of many passes one is on its way while others are computed.
  return (adds_ ? weft::seconds(link.latency) : 0) + rows * bytes / link.bytes_per_second;
}

// Looked at for every span of a search.
bool RingProblem::fits(uint32_t device, const RingLoad& load, uint64_t positions) const {
  const DeviceView& of = request_.cluster.devices()[device];
  const auto each = static_cast<double>(positions);
  double bytes = static_cast<double>(load.weights + load.work) + static_cast<double>(load.cache) * each;
  const double kept = keeps_rows_ ? static_cast<double>(load.kept) * each : 0;
  if (of.host_memory.value <= 0)
    bytes += kept;
  else if (kept > static_cast<double>(of.host_memory.value))
    return false;
  return bytes <= static_cast<double>(of.memory.value);
}

uint64_t RingProblem::room(uint32_t device, const RingLoad& load) const {
  const DeviceView& of = request_.cluster.devices()[device];
  const int64_t left = of.memory.value - load.weights - load.work;
  const auto positions = [](int64_t bytes, int64_t each) {
    return each > 0 ? static_cast<uint64_t>(std::max<int64_t>(0, bytes) / each)
                    : std::numeric_limits<uint64_t>::max();
  };
  const int64_t kept = keeps_rows_ ? load.kept : 0;
  if (of.host_memory.value <= 0) return positions(left, load.cache + kept);
  return std::min(positions(left, load.cache), positions(of.host_memory.value, kept));
}

// What the parts behind those before `unit` read: nothing passes behind the last.
int64_t RingProblem::kept_behind(uint32_t unit) const {
  return unit < units() ? request_.parts[begin_[unit]].row_bytes : 0;
}

double RingProblem::effort(size_t stages) const {
  const double heads = units() <= kAllHeadsMax ? units() : kHeadsMax;
  return heads * static_cast<double>(stages) * units() * units();
}

std::optional<RingCuts> RingProblem::cut(std::span<const uint32_t> order, uint64_t positions) const {
  const uint32_t count = units();
  if (order.size() == 1) {
    if (!fits(order[0], whole(), positions)) return std::nullopt;
    return RingCuts{{count}, of_all(order[0])};
  }
  if (order.size() > stages_max()) return std::nullopt;
  std::optional<RingCuts> best;
  const uint32_t heads = count <= kAllHeadsMax ? count : kHeadsMax;
  for (uint32_t head = 1; head <= heads && head + order.size() <= count; ++head)
    close(order, head, positions, best);
  return best;
}

std::vector<double> RingProblem::extend(const std::vector<double>& before, uint32_t from, uint32_t device,
                                        uint64_t positions, std::vector<uint32_t>& begins) const {
  std::vector<double> best(units(), kEndless);
  begins.assign(units(), 0);
  for (uint32_t begin = 1; begin + 1 < units(); ++begin) {
    if (before[begin] == kEndless) continue;
    const double so_far = joined(before[begin], hop(from, device, begin, rows_));
    for (uint32_t end = begin + 1; end < units(); ++end) {
      RingLoad load = span_[begin][end];
      if (!fits(device, load, positions)) {
        load.kept = 0;
        if (!fits(device, load, positions)) break;  // more parts only take more
        continue;
      }
      const double cost = joined(so_far, span_seconds(device, begin, end, rows_));
      if (cost >= best[end]) continue;
      best[end] = cost;
      begins[end] = begin;
    }
  }
  return best;
}

// With so many units before the first cut.
void RingProblem::close(std::span<const uint32_t> order, uint32_t head, uint64_t positions,
                        std::optional<RingCuts>& best) const {
  std::vector<double> costs(units(), kEndless);
  costs[head] = 0;
  std::vector<std::vector<uint32_t>> begins(order.size());
  for (size_t stage = 1; stage < order.size(); ++stage)
    costs = extend(costs, order[stage - 1], order[stage], positions, begins[stage]);
  for (uint32_t tail = head + 1; tail < units(); ++tail) {
    if (costs[tail] == kEndless) continue;
    std::vector<uint32_t> ends(order.size(), head);
    ends.back() = tail;
    if (!fits(order[0], load(0, ends), positions)) continue;
    const double entry = seconds(order[0], 0, ends, rows_);
    const double cost = joined(joined(costs[tail], hop(order.back(), order[0], tail, rows_)), entry);
    if (best && cost >= best->cost) continue;
    for (size_t stage = order.size() - 1; stage > 0; --stage) ends[stage - 1] = begins[stage][ends[stage]];
    best = RingCuts{std::move(ends), cost};
  }
}

RingLoad RingProblem::load(size_t stage, const std::vector<uint32_t>& ends) const {
  if (stage > 0) return span_[ends[stage - 1]][ends[stage]];
  RingLoad entry = span_[0][units()];
  if (ends.size() > 1) {
    const RingLoad &head = span_[0][ends[0]], &tail = span_[ends.back()][units()];
    entry = {.weights = ends_of_[ends[0]][ends.back()],
             .work = std::max(head.work, tail.work),
             .cache = head.cache + tail.cache,
             .kept = head.kept};
  }
  if (!request_.draft) return entry;
  entry.weights += request_.draft->weight_bytes;
  entry.cache += request_.draft->cache_bytes;
  entry.work += request_.draft->work_bytes;
  return entry;
}

std::vector<PartSpan> RingProblem::parts(size_t stage, const std::vector<uint32_t>& ends) const {
  if (stage > 0) return {{begin_[ends[stage - 1]], begin_[ends[stage]]}};
  if (ends.size() == 1) return {{0, begin_.back()}};
  return {{0, begin_[ends[0]]}, {begin_[ends.back()], begin_.back()}};
}

double RingProblem::seconds(uint32_t device, size_t stage, const std::vector<uint32_t>& ends, double rows,
                            bool of_one) const {
  if (stage > 0) return span_seconds(device, ends[stage - 1], ends[stage], rows, of_one);
  if (ends.size() == 1) return span_seconds(device, 0, units(), rows, of_one);
  return span_seconds(device, 0, ends[0], rows, of_one) +
         span_seconds(device, ends.back(), units(), rows, of_one);
}

double RingProblem::hop(std::span<const uint32_t> order, size_t stage, const std::vector<uint32_t>& ends,
                        double rows) const {
  if (order.size() == 1) return 0;
  const LinkView link = request_.cluster.link(order[stage], order[(stage + 1) % order.size()]);
  const double bytes = static_cast<double>(request_.parts[begin_[ends[stage]]].row_bytes) + kPieceBytes;
  return weft::seconds(link.latency) + rows * bytes / link.bytes_per_second;
}

}  // namespace weft::plan
