// What the broker and the process that plans for it say to each other.
#include "proto/codec/planning.h"

#include <cmath>

#include "proto/codec/wire.h"

namespace weft::proto {

// ---- the question

namespace {

constexpr int kRates = 4 + 4 * static_cast<int>(plan::kUnitCount);

// Every rate, in one order. What is believed of a device may be beyond what a device says of itself.
template <typename Rates, typename Visit>
void each_rate(Rates& rates, const Visit& visit) {
  visit(rates.matmul_flops_per_second);
  visit(rates.convolution_flops_per_second);
  visit(rates.memory_bytes_per_second);
  visit(rates.kernel_seconds);
  for (auto& unit : rates.units) {
    visit(unit.small_flops_per_second);
    visit(unit.flops_per_second);
    visit(unit.small_bytes_per_second);
    visit(unit.bytes_per_second);
  }
}

void put_device(const plan::DeviceView& from, wire::PlanCandidate& to) {
  to.set_owner(from.owner);
  each_rate(from.rates, [&](double rate) { to.add_rates(rate); });
  to.set_memory(static_cast<uint64_t>(from.memory.value));
  to.set_host_memory(static_cast<uint64_t>(from.host_memory.value));
  to.set_device_class(from.device_class);
  to.set_uplink(from.uplink);
  to.set_downlink(from.downlink);
  to.set_threads(from.threads);
  to.set_site(from.site);
}

// Name, region and fingerprint are those of the candidate.
Status get_device(const wire::PlanCandidate& from, const PlanCandidate& candidate, size_t candidates,
                  plan::DeviceView& to) {
  Reader read("PlanCandidate");
  to.name = candidate.name;
  to.region = candidate.device.region;
  to.fingerprint = candidate.device.fingerprint;
  read.text(from.owner(), to.owner, kSymbolMax, "owner");
  read.require(from.rates_size() == kRates, "rates", "not as many as a device has");
  if (!read.good()) return read.status();
  int next = 0;
  each_rate(to.rates, [&](double& rate) { read.not_negative(from.rates(next++), rate, "rates"); });
  read.bytes(from.memory(), to.memory, "memory");
  read.bytes(from.host_memory(), to.host_memory, "host_memory");
  read.require(from.device_class() < candidates, "device_class", "no such class");
  to.device_class = from.device_class();
  read.require(from.uplink() > 0 && from.downlink() > 0, "uplink", "a line carries more than nothing");
  to.uplink = from.uplink();
  to.downlink = from.downlink();
  to.threads = from.threads();
  read.require(from.site() < candidates, "site", "no such site");
  to.site = from.site();
  return read.status();
}

void put_link(const plan::LinkView& from, wire::PlanLinks& to) {
  to.add_bytes_per_second(from.bytes_per_second);
  to.add_latency_nanoseconds(static_cast<uint64_t>(from.latency.count()));
  to.add_assumed(from.is_assumed);
}

// REQUIRES: as many of each field.
Status get_link(const wire::PlanLinks& from, int index, plan::LinkView& to) {
  Reader read("PlanLinks");
  read.require(from.bytes_per_second(index) > 0, "bytes_per_second", "a link carries more than nothing");
  to.bytes_per_second = from.bytes_per_second(index);
  read.duration(from.latency_nanoseconds(index), to.latency, "latency_nanoseconds");
  to.is_assumed = from.assumed(index);
  return read.status();
}

bool has_links(const wire::PlanLinks& links, size_t count) {
  return static_cast<size_t>(links.bytes_per_second_size()) == count &&
         static_cast<size_t>(links.latency_nanoseconds_size()) == count &&
         static_cast<size_t>(links.assumed_size()) == count;
}

Status get_cluster(const wire::PlanQuestion& from, std::vector<plan::DeviceView> devices,
                   plan::ClusterView& to) {
  Reader read("PlanQuestion");
  const size_t count = devices.size();
  plan::ClusterView cluster;
  size_t sites = 0;
  for (const plan::DeviceView& device : devices) sites = std::max<size_t>(sites, device.site + 1);
  const auto pairs = static_cast<size_t>(from.pair_from_size());
  // Before the cluster takes memory by pairs of sites.
  read.require(has_links(from.between(), sites * sites), "between", "not one for each pair of sites");
  read.require(has_links(from.pairs(), pairs) && static_cast<size_t>(from.pair_to_size()) == pairs, "pairs",
               "not one for each pair");
  if (!read.good()) return read.status();
  cluster = plan::ClusterView(std::move(devices));
  for (uint32_t a = 0, at = 0; a < sites; ++a)
    for (uint32_t b = 0; b < sites; ++b, ++at) {
      plan::LinkView link;
      WEFT_TRY_STATUS(get_link(from.between(), static_cast<int>(at), link));
      cluster.set_between(a, b, link);
    }
  for (int i = 0; i < static_cast<int>(pairs); ++i) {
    read.require(from.pair_from(i) < count && from.pair_to(i) < count, "pairs", "no such candidate");
    if (!read.good()) return read.status();
    plan::LinkView link;
    WEFT_TRY_STATUS(get_link(from.pairs(), i, link));
    cluster.set_link(from.pair_from(i), from.pair_to(i), link);
  }
  to = std::move(cluster);
  return read.status();
}

}  // namespace

void put(const PlanQuestion& from, wire::PlanQuestion& to) {
  to.set_task(put_enum<wire::PlanTask>(from.task));
  to.set_job(from.job);
  to.set_plan_version(from.plan_version);
  to.set_microbatch_size(from.microbatch_size);
  put_plain(from.chosen.shares, *to.mutable_shares());
  to.set_every(from.chosen.every);
  if (from.chosen.codec != compress::Codec{}) to.set_codec(compress::name(from.chosen.codec));
  to.set_gentler(from.gentler);
  to.set_is_first(from.is_first);
  to.set_has_checkpoint(from.has_checkpoint);
  to.set_may_follow(from.may_follow);
  for (size_t i = 0; i < from.candidates.size(); ++i) {
    wire::PlanCandidate& candidate = *to.add_candidates();
    candidate.set_peer(put_bytes(from.candidates[i].peer.digest));
    candidate.set_name(from.candidates[i].name);
    put(from.candidates[i].device, *candidate.mutable_device());
    if (from.candidates[i].replica) candidate.set_replica(*from.candidates[i].replica + 1);
    put_device(from.cluster.devices()[i], candidate);
  }
  for (uint32_t a = 0; a < from.cluster.site_count(); ++a)
    for (uint32_t b = 0; b < from.cluster.site_count(); ++b)
      put_link(from.cluster.between(a, b), *to.mutable_between());
  from.cluster.each_pair([&](uint32_t a, uint32_t b, const plan::LinkView& link) {
    to.add_pair_from(a);
    to.add_pair_to(b);
    put_link(link, *to.mutable_pairs());
  });
}
Status get(const wire::PlanQuestion& from, PlanQuestion& to) {
  Reader read("PlanQuestion");
  read.enumerator(from.task(), to.task, PlanTask::Plan, "task");
  to.job = from.job();
  to.plan_version = from.plan_version();
  to.microbatch_size = from.microbatch_size();
  read.numbers(from.shares(), to.chosen.shares, kReplicasMax, "shares");
  to.chosen.every = from.every();
  read.require(to.chosen.every <= replicas::kEveryMax, "every", "more steps than a round has");
  read.codec(from.codec(), to.chosen.codec, "codec");
  to.gentler = from.gentler();
  to.is_first = from.is_first();
  to.has_checkpoint = from.has_checkpoint();
  to.may_follow = from.may_follow();
  const auto count = static_cast<size_t>(from.candidates_size());
  read.require(count <= kListMax, "candidates", "more than 100000");
  std::vector<plan::DeviceView> devices;
  for (size_t i = 0; i < count && read.good(); ++i) {
    const wire::PlanCandidate& candidate = from.candidates(static_cast<int>(i));
    PlanCandidate& into = to.candidates.emplace_back();
    read.digest(candidate.peer(), into.peer.digest, "candidates.peer");
    read.name(candidate.name(), into.name, "candidates.name");
    read.part(candidate.device(), into.device, "candidates.device");
    read.require(candidate.replica() <= kReplicasMax, "candidates.replica", "no such replica");
    if (candidate.replica() > 0) into.replica = candidate.replica() - 1;
    if (read.good()) WEFT_TRY_STATUS(get_device(candidate, into, count, devices.emplace_back()));
  }
  if (!read.good()) return read.status();
  return get_cluster(from, std::move(devices), to.cluster);
}

// ---- the answer

void put(const ColumnTransform& from, wire::ColumnTransform& to) {
  to.set_column(from.column);
  to.set_scale(from.scale);
  put_plain(from.mean, *to.mutable_mean());
  put_plain(from.deviation, *to.mutable_deviation());
  to.set_flip(from.flip);
  to.set_crop(from.crop);
}
Status get(const wire::ColumnTransform& from, ColumnTransform& to) {
  Reader read("ColumnTransform");
  read.text(from.column(), to.column, kSymbolMax, "column");
  read.finite(from.scale(), to.scale, "scale");
  read.numbers(from.mean(), to.mean, kShortListMax, "mean");
  for (const double mean : to.mean) read.require(std::isfinite(mean), "mean", "not finite");
  read.numbers(from.deviation(), to.deviation, kShortListMax, "deviation");
  for (const double deviation : to.deviation)
    read.require(std::isfinite(deviation) && deviation != 0, "deviation", "zero, or not finite");
  to.flip = from.flip();
  read.require(from.crop() <= kShortListMax, "crop", "more than 4096");
  to.crop = from.crop();
  return read.status();
}

void put(const DataSource& from, wire::DataSource& to) {
  to.set_format(put_enum<wire::DataFormat>(from.format));
  to.set_path(from.path);
  to.set_labels(from.labels);
  to.set_scale(from.scale);
  to.set_mean(from.mean);
  to.set_deviation(from.deviation);
  to.set_sequence_length(from.sequence_length);
  to.set_token_bytes(from.token_bytes);
  to.set_validation(from.validation);
  to.set_is_validation(from.is_validation);
  for (const std::string& column : from.columns) to.add_columns(column);
  put_list(from.transforms, *to.mutable_transforms());
}
Status get(const wire::DataSource& from, DataSource& to) {
  Reader read("DataSource");
  read.enumerator(from.format(), to.format, DataFormat::Text, "format");
  read.text(from.path(), to.path, kSymbolMax, "path");
  read.text(from.labels(), to.labels, kSymbolMax, "labels");
  read.finite(from.scale(), to.scale, "scale");
  read.finite(from.mean(), to.mean, "mean");
  read.finite(from.deviation(), to.deviation, "deviation");
  read.require(from.deviation() != 0, "deviation", "zero");
  to.sequence_length = from.sequence_length();
  to.token_bytes = std::max(from.token_bytes(), 1u);
  read.require(to.token_bytes == 1 || to.token_bytes == 2 || to.token_bytes == 4, "token_bytes",
               "not 1, 2 or 4");
  read.not_negative(from.validation(), to.validation, "validation");
  read.require(from.validation() < 1, "validation", "1 or more");
  to.is_validation = from.is_validation();
  read.texts(from.columns(), to.columns, kShortListMax, kSymbolMax, "columns");
  read.list(from.transforms(), to.transforms, kShortListMax, "transforms");
  return read.status();
}

void put(const InputFeed& from, wire::InputFeed& to) {
  to.set_input(from.input);
  to.set_column(from.column);
  if (from.sample) put(*from.sample, *to.mutable_sample());
}
Status get(const wire::InputFeed& from, InputFeed& to) {
  Reader read("InputFeed");
  read.text(from.input(), to.input, kSymbolMax, "input");
  to.column = from.column();
  if (from.has_sample()) read.part(from.sample(), to.sample.emplace(), "sample");
  return read.status();
}

void put(const InputBounds& from, wire::InputBounds& to) {
  to.set_input(from.input);
  to.set_low(from.low);
  to.set_high(from.high);
  if (from.also) to.set_also(*from.also);
}
Status get(const wire::InputBounds& from, InputBounds& to) {
  Reader read("InputBounds");
  read.text(from.input(), to.input, kSymbolMax, "input");
  to.low = from.low();
  to.high = from.high();
  if (from.has_also()) to.also = from.also();
  return read.status();
}

void put(const StepDivisor& from, wire::StepDivisor& to) {
  to.set_input(from.input);
  if (from.labels) to.set_labels(*from.labels);
  if (from.weights) to.set_weights(*from.weights);
  if (from.rule.ignore_index) to.set_ignore_index(*from.rule.ignore_index);
  put_plain(from.rule.class_weights, *to.mutable_class_weights());
  put_plain(from.rule.reads, *to.mutable_reads());
  to.set_elements(static_cast<uint64_t>(from.rule.elements));
}
Status get(const wire::StepDivisor& from, StepDivisor& to) {
  Reader read("StepDivisor");
  read.text(from.input(), to.input, kSymbolMax, "input");
  if (from.has_labels()) to.labels = from.labels();
  if (from.has_weights()) to.weights = from.weights();
  if (from.has_ignore_index()) to.rule.ignore_index = from.ignore_index();
  read.numbers(from.class_weights(), to.rule.class_weights, dag::kClassWeightsMax, "class_weights");
  for (const double weight : to.rule.class_weights)
    read.require(weight >= 0 && weight <= dag::kCountWeightMax, "class_weights", "not in 0 to 1e30");
  read.numbers(from.reads(), to.rule.reads, kReadsMax, "reads");
  read.require(from.elements() <= uint64_t{dag::kElementCountMax}, "elements", "more than 2^40");
  to.rule.elements = static_cast<int64_t>(from.elements());
  return read.status();
}

void put(const ProgramFeed& from, wire::ProgramFeed& to) {
  to.set_program(put_enum<wire::ProgramKind>(from.program));
  put(from.data, *to.mutable_data());
  put_list(from.inputs, *to.mutable_inputs());
  put_list(from.bounds, *to.mutable_bounds());
  put_list(from.divisors, *to.mutable_divisors());
}
Status get(const wire::ProgramFeed& from, ProgramFeed& to) {
  Reader read("ProgramFeed");
  read.enumerator(from.program(), to.program, ProgramKind::Predict, "program");
  read.part(from.data(), to.data, "data");
  read.list(from.inputs(), to.inputs, kShortListMax, "inputs");
  read.list(from.bounds(), to.bounds, kListMax, "bounds");
  read.list(from.divisors(), to.divisors, dag::kLossTermsMax, "divisors");
  return read.status();
}

void put(const JobFeed& from, wire::JobFeed& to) {
  to.set_steps(from.steps);
  to.set_batch_size(from.batch_size);
  to.set_microbatch_size(from.microbatch_size);
  to.set_shuffle(from.shuffle);
  to.set_seed(from.seed);
  put_list(from.programs, *to.mutable_programs());
  put_list(from.initial, *to.mutable_initial());
  to.set_loss_terms(from.loss_terms);
  to.set_serves(from.serves);
}
Status get(const wire::JobFeed& from, JobFeed& to) {
  Reader read("JobFeed");
  to.steps = from.steps();
  to.batch_size = from.batch_size();
  to.microbatch_size = from.microbatch_size();
  read.require(to.batch_size >= 1 && to.batch_size <= kBatchSizeMax, "batch_size", "not in 1 to 2^30");
  read.require(to.microbatch_size >= 1 && to.batch_size % std::max(to.microbatch_size, 1u) == 0,
               "microbatch_size", "the batch size is no multiple of it");
  to.shuffle = from.shuffle();
  to.seed = from.seed();
  read.list(from.programs(), to.programs, 3, "programs");
  for (size_t i = 0; i < to.programs.size(); ++i)
    for (size_t before = 0; before < i; ++before)
      read.require(to.programs[i].program != to.programs[before].program, "programs", "one is there twice");
  read.list(from.initial(), to.initial, kListMax, "initial");
  to.loss_terms = from.loss_terms();
  to.serves = from.serves();
  return read.status();
}

void put(const PlanAnswer& from, wire::PlanAnswer& to) {
  if (from.error) {
    to.set_code(put_enum<wire::ErrorCode>(from.error->code));
    to.set_message(put_text(from.error->message));
    return;
  }
  to.set_compresses(from.compresses);
  to.set_arithmetic(put_enum<wire::Arithmetic>(from.arithmetic));
  to.set_skips_steps(from.skips_steps);
  to.set_peer_minor(from.peer_minor);
  to.set_serves(from.serves);
  if (from.feed) put(*from.feed, *to.mutable_feed());
  if (from.plan) put(*from.plan, *to.mutable_plan());
}
Status get(const wire::PlanAnswer& from, PlanAnswer& to) {
  Reader read("PlanAnswer");
  if (from.code() != wire::ERROR_CODE_UNSPECIFIED) {
    to.error.emplace();
    read.error_code(from.code(), to.error->code, "code");
    read.message(from.message(), to.error->message, "message");
    return read.status();
  }
  to.compresses = from.compresses();
  read.enumerator(from.arithmetic(), to.arithmetic, dag::Arithmetic::BF16, "arithmetic");
  to.skips_steps = from.skips_steps();
  to.peer_minor = from.peer_minor();
  read.name(from.serves(), to.serves, "serves");
  if (from.has_feed()) read.part(from.feed(), to.feed.emplace(), "feed");
  if (from.has_plan()) read.part(from.plan(), to.plan.emplace(), "plan");
  return read.status();
}

}  // namespace weft::proto
