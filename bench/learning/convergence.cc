// What is learned over compressed links: an example's job trained in stages in this process, real compute and
// data, every tensor that crosses a cut through the codec that its policy gives the link. Rows of the
// held-out loss against steps and against emulated time, seeds paired: all policies of a seed begin with the
// same weights and see the same samples in the same order. At the end, how far each policy's last loss is
// above that of dense links at equal steps.
//
// loss is over the same codecs as in training, loss_uncompressed_forward over dense links. Before anything
// else a few steps of dense links are compared with those of one machine: the same bits, or it stops.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/learning/job_graphs.h"
#include "bench/learning/network.h"
#include "bench/learning/stages.h"
#include "configs/cluster.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "train/session.h"

namespace weft::learning {
namespace {
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr uint64_t kCheckedSteps = 3;
constexpr double kWithin = 0.01;  // of the dense loss, to pass
constexpr const char* kAllPolicies =
    "none,auto,fp16,int8,int6,int5,int4,int3,topk:0.02:int8+int4,topk:0.1:fp16,topk:0.02:fp16,topk:0.01:fp16,"
    "adatopk:100";
constexpr const char* kQuickPolicies = "none,auto,int4,topk:0.02:fp16";

constexpr const char* kUsage =
    R"(usage: bench/convergence --model gpt --text FILE | --model resnet
  --steps N --every N   how long, and how often the held-out loss is taken (300 and a tenth of it)
  --seeds N             paired (3)
  --cuts LIST           numbers of cuts (2,4)
  --strategy NAME       how the planner cuts (equal-ops-joining: equal numbers of ops)
  --codecs LIST         none, auto, adatopk:RATIO, a codec for all links, or CODEC/CODEC for activations and
                        cotangents; none is always run, to compare with
  --held-out N          samples that the loss is taken on (64 texts, 1000 images)
  --bandwidth RATE      emulated: of the slowest link (20Mbit)
  --spread LIST         how many times as fast each cut's link is, in turn (1,2,4,5)
  --round-trip MS       of every link (40)
  --device NAME         of the catalogue, every stage's (rtx3080)
  --threads N           that compute (0: all)
  --set KEY=VALUE       of the example's job
  --format text|json    json: one line a row
  --quick               a few minutes: 60 steps, one seed, two cuts, a few codecs
  --check               only compares dense links with one machine
)";

struct Options {
  std::string model = "gpt", text;
  uint64_t steps = 0, every = 0;  // 0: by model
  std::vector<uint32_t> cuts = {2, 4};
  uint64_t seeds = 3;
  std::vector<Policy> policies;
  uint32_t held_out = 0;  // likewise
  Setting setting;
  int threads = 0;
  std::vector<std::string> sets;
  bool json = false, quick = false, check_only = false;
};

Result<std::vector<std::string>> items_of(const std::string& text) {
  std::vector<std::string> items;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    if (end == begin) return fail(ErrorCode::InvalidArgument, "an empty item in the list '" + text + "'");
    items.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return items;
}

template <typename T>
Result<T> number_of(const std::string& option, const std::string& text, T least) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !(number >= least))
    return fail(ErrorCode::InvalidArgument, option + " takes a number, not '" + text + "'");
  return number;
}

template <typename T>
Result<std::vector<T>> numbers_of(const std::string& option, const std::string& text, T least) {
  std::vector<T> numbers;
  WEFT_TRY(const auto items, items_of(text));
  for (const std::string& item : items) {
    WEFT_TRY(numbers.emplace_back(), number_of<T>(option, item, least));
  }
  return numbers;
}

// Dense first: the others are compared with it.
Result<std::vector<Policy>> policies_of(const std::string& text) {
  std::vector<Policy> policies{{.name = "none"}};
  WEFT_TRY(const auto items, items_of(text));
  for (const std::string& item : items) {
    WEFT_TRY(Policy policy, parse_policy(item));
    if (policy.kind != plan::CompressionPolicy::None) policies.push_back(std::move(policy));
  }
  return policies;
}

Result<Options> parse_options(int argc, char** argv) {
  Options options;
  std::string policies, cuts, seeds;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--quick") {
      options.quick = true;
      continue;
    }
    if (option == "--check") {
      options.check_only = true;
      continue;
    }
    if (i + 1 == argc)
      return fail(ErrorCode::InvalidArgument, "'" + option + "' is no option, or lacks its value");
    const std::string value = argv[++i];
    if (option == "--model") {
      if (value != "gpt" && value != "resnet")
        return fail(ErrorCode::InvalidArgument, "--model is gpt or resnet, not '" + value + "'");
      options.model = value;
    } else if (option == "--text") {
      options.text = fs::absolute(value).string();
    } else if (option == "--steps") {
      WEFT_TRY(options.steps, number_of<uint64_t>(option, value, 1));
    } else if (option == "--every") {
      WEFT_TRY(options.every, number_of<uint64_t>(option, value, 1));
    } else if (option == "--cuts") {
      cuts = value;
    } else if (option == "--seeds") {
      seeds = value;
    } else if (option == "--codecs") {
      policies = value;
    } else if (option == "--held-out") {
      WEFT_TRY(options.held_out, number_of<uint32_t>(option, value, 1));
    } else if (option == "--bandwidth") {
      const auto rate = configs::parse_bandwidth(value);
      if (!rate) return fail(ErrorCode::InvalidArgument, "--bandwidth is as 20Mbit, not '" + value + "'");
      options.setting.bytes_per_second = *rate;
    } else if (option == "--spread") {
      WEFT_TRY(options.setting.spread, numbers_of<double>(option, value, 1));
    } else if (option == "--round-trip") {
      WEFT_TRY(options.setting.round_trip_ms, number_of<double>(option, value, 0));
    } else if (option == "--device") {
      options.setting.device = value;
    } else if (option == "--strategy") {
      options.setting.strategy = value;
    } else if (option == "--threads") {
      WEFT_TRY(options.threads, number_of<int>(option, value, 0));
    } else if (option == "--set") {
      options.sets.push_back(value);
    } else if (option == "--format") {
      if (value != "json" && value != "text")
        return fail(ErrorCode::InvalidArgument, "--format is text or json, not '" + value + "'");
      options.json = value == "json";
    } else {
      return fail(ErrorCode::InvalidArgument, "there is no option '" + option + "'");
    }
  }
  if (options.model == "gpt" && options.text.empty())
    return fail(ErrorCode::InvalidArgument, "--model gpt needs --text FILE, something to learn from");
  if (cuts.empty()) cuts = options.quick ? "2" : "2,4";
  if (seeds.empty()) seeds = options.quick ? "1" : "3";
  if (policies.empty()) policies = options.quick ? kQuickPolicies : kAllPolicies;
  WEFT_TRY(options.cuts, numbers_of<uint32_t>("--cuts", cuts, 1));
  WEFT_TRY(options.seeds, number_of<uint64_t>("--seeds", seeds, 1));
  WEFT_TRY(options.policies, policies_of(policies));
  if (options.steps == 0) options.steps = options.quick ? 60 : 300;
  if (options.every == 0) options.every = std::max<uint64_t>(1, options.steps / 10);
  if (options.held_out == 0) options.held_out = options.model == "gpt" ? 64 : 1000;
  return options;
}

// The example's job; what is given by --set comes last.
std::vector<std::string> sets_of(const Options& options) {
  std::vector<std::string> sets = {
      "steps=" + std::to_string(options.steps), "epochs=null", "checkpoint=null", "evaluate_every=0",
      "schedule={type: cosine, warmup_steps: " + std::to_string(options.steps / 10) + ", final: 0.1}"};
  if (options.model == "gpt")
    sets.insert(sets.end(), {"data.train.path=" + options.text, "batch_size=8", "microbatch_size=2"});
  else
    sets.insert(sets.end(), {"batch_size=32", "microbatch_size=8"});
  sets.insert(sets.end(), options.sets.begin(), options.sets.end());
  return sets;
}

data::Loader loader_of(const JobGraphs& graphs, uint64_t seed, uint64_t steps, peer::Backend& backend) {
  return {
      graphs.train,
      graphs.training.feeds,
      data::training_requests(data::SampleSequence(graphs.train->sample_count(), graphs.job.shuffle, seed), 1,
                              steps, graphs.job.batch_size, graphs.job.microbatch_size),
      {.divisors = graphs.training.divisors, .loss_terms = graphs.job.losses.size(), .on_start = [&backend] {
         backend.release_calling_thread();
       }}};
}

// Over a cut into dense links the same bits come out as `weft local` trains.
Status check_same_bits(const JobGraphs& graphs, const Network& network, peer::Backend& backend) {
  const uint64_t steps = std::min(kCheckedSteps, graphs.steps);
  for (const uint64_t seed : {0, 1}) {
    const dag::Weights weights = initial_weights(graphs, seed);
    configs::Job job = graphs.job;
    job.seed = seed;
    train::Prepared prepared = graphs.training;
    for (auto& [name, tensor] : prepared.weights) tensor = weights.at(name);
    const auto state = std::make_shared<peer::State>(backend);
    WEFT_TRY(const auto session, train::TrainingSession::create(std::move(prepared), job, state));
    WEFT_TRY(const auto stages, Stages::create(graphs, network.stage_of_op(), {}, weights, seed, backend));
    data::Loader whole = loader_of(graphs, seed, steps, backend),
                 apart = loader_of(graphs, seed, steps, backend);
    for (uint64_t step = 1; step <= steps; ++step) {
      WEFT_TRY(const auto result, session->step(session->place_of(step), graphs.steps, whole));
      WEFT_TRY(const double loss, stages->step(step, apart));
      if (loss != result.loss)
        return fail(ErrorCode::Internal, "seed " + std::to_string(seed) + ", step " + std::to_string(step) +
                                             ": " + std::to_string(network.stages()) +
                                             " stages have a loss of " + std::to_string(loss) +
                                             ", one machine of " + std::to_string(result.loss));
    }
    WEFT_TRY(const auto trained, stages->state(steps));
    for (const dag::StateKey& key : trained_state(session->executor().graph(), job.optimizer)) {
      WEFT_TRY(const dag::Tensor expected, state->read(key));
      const auto found = trained.find(key);
      if (found == trained.end() ||
          std::memcmp(found->second.bytes().data(), expected.bytes().data(), expected.bytes().size()) != 0)
        return fail(ErrorCode::Internal, to_string(key) + " differs between " +
                                             std::to_string(network.stages()) + " stages and one machine");
    }
  }
  return {};
}

struct Point {
  uint64_t step = 0;
  double loss = 0, loss_uncompressed_forward = 0, training_loss = 0, seconds = 0;
};
struct Curve {
  std::string codec{};
  double ratio = 1;
  std::vector<Point> points{};
};

class Bench {
 public:
  Bench(const Options& options, const JobGraphs& graphs, peer::Backend& backend)
      : options_(options), graphs_(graphs), backend_(backend) {}

  Status run() {
    for (const uint32_t cuts : options_.cuts) {
      WEFT_TRY(const Network network, Network::create(graphs_, cuts, options_.setting));
      announce(network);
      WEFT_TRY_STATUS(check_same_bits(graphs_, network, backend_));
      std::fprintf(stderr, "%u stages with dense links: the bits of one machine\n", network.stages());
      if (options_.check_only) continue;
      // By policy: the last point of each seed, beside that of dense links.
      std::vector<Final> finals(options_.policies.size());
      for (uint64_t seed = 0; seed < options_.seeds; ++seed) {
        double dense = 0;
        for (size_t p = 0; p < options_.policies.size(); ++p) {
          WEFT_TRY(const Curve curve, curve_of(network, options_.policies[p], seed));
          const Point& last = curve.points.back();
          if (p == 0) dense = last.loss;
          finals[p].note(curve, dense);
        }
      }
      for (size_t p = 0; p < finals.size(); ++p) summarise(network, options_.policies[p], finals[p]);
    }
    return {};
  }

 private:
  struct Final {
    std::string codec;
    double ratio = 1, seconds = 0;
    std::vector<double> relative, relative_uncompressed;  // by seed
    std::vector<double> steps_there;  // until within 1% of dense's last loss; of the seeds that came there
    void note(const Curve& curve, double dense) {
      const Point& last = curve.points.back();
      codec = curve.codec, ratio = curve.ratio, seconds = last.seconds / static_cast<double>(last.step);
      relative.push_back(last.loss / dense - 1);
      relative_uncompressed.push_back(last.loss_uncompressed_forward / dense - 1);
      const auto there = std::find_if(curve.points.begin(), curve.points.end(), [&](const Point& point) {
        return point.loss <= (1 + kWithin) * dense;
      });
      if (there != curve.points.end()) steps_there.push_back(static_cast<double>(there->step));
    }
  };

  Result<Curve> curve_of(const Network& network, const Policy& policy, uint64_t seed) {
    const std::vector<plan::LinkCodec> codecs = network.codecs(policy);
    Curve curve{.codec = describe_codecs(codecs)};
    // Dense links give the same bits wherever the cuts are: only the time is another.
    if (const auto known = dense_.find(seed); codecs.empty() && known != dense_.end()) {
      curve = known->second;
      const double step_seconds = network.step_seconds(codecs, {}, 0);
      for (Point& point : curve.points) {
        point.seconds = static_cast<double>(point.step) * step_seconds;
        print(network, policy, curve, seed, point);
      }
      return curve;
    }
    const auto began = std::time(nullptr);
    WEFT_TRY(const auto stages, Stages::create(graphs_, network.stage_of_op(), codecs,
                                               initial_weights(graphs_, seed), seed, backend_));
    data::Loader loader = loader_of(graphs_, seed, graphs_.steps, backend_);
    for (uint64_t step = 1; step <= graphs_.steps; ++step) {
      WEFT_TRY(const double training_loss, stages->step(step, loader));
      const bool diverged = !std::isfinite(training_loss);
      if (!diverged && step % options_.every != 0 && step != graphs_.steps) continue;
      Point point{.step = step, .training_loss = training_loss};
      WEFT_TRY(point.loss, stages->evaluate(step, /*dense=*/false));
      point.loss_uncompressed_forward = point.loss;
      if (!codecs.empty()) {
        WEFT_TRY(point.loss_uncompressed_forward, stages->evaluate(step, /*dense=*/true));
      }
      point.seconds = static_cast<double>(step) *
                      network.step_seconds(codecs, stages->sent(), stages->microbatches_sent());
      curve.ratio = ratio_of(*stages);
      curve.points.push_back(point);
      print(network, policy, curve, seed, point);
      if (diverged) break;
    }
    std::fprintf(stderr, "%s, %u cuts, %s, seed %llu: %lld s\n", data_name().c_str(), network.stages() - 1,
                 policy.name.c_str(), static_cast<unsigned long long>(seed),
                 static_cast<long long>(std::time(nullptr) - began));
    if (codecs.empty()) dense_[seed] = curve;
    return curve;
  }

  static double ratio_of(const Stages& stages) {
    double dense = 0, wire = 0;
    for (const auto& [direction, sent] : stages.sent()) {
      dense += static_cast<double>(sent.dense);
      wire += static_cast<double>(sent.wire);
    }
    return wire > 0 ? dense / wire : 1;
  }

  std::string data_name() const {
    return options_.model == "gpt" ? fs::path(options_.text).stem().string() : "fashion-mnist";
  }
  // A codec for each link is too much for a column.
  static std::string shown(const std::string& codec) {
    constexpr size_t kColumn = 36;
    return codec.size() <= kColumn ? codec : codec.substr(0, kColumn - 3) + "...";
  }
  static void print_line(const Json& json) {
    std::printf("%s\n", json.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
    std::fflush(stdout);
  }

  void announce(const Network& network) const {
    if (options_.json)
      return print_line({{"event", "setting"},
                         {"model", options_.model},
                         {"data", data_name()},
                         {"cuts", network.stages() - 1},
                         {"steps", graphs_.steps},
                         {"batch_size", graphs_.job.batch_size},
                         {"microbatch_size", graphs_.job.microbatch_size},
                         {"held_out_microbatches", graphs_.held_out.size()},
                         {"fingerprint", backend_.numerics_fingerprint()},
                         {"bandwidth_bits_per_second", 8 * options_.setting.bytes_per_second},
                         {"network", network.describe()},
                         {"plan", network.plan_lines()}});
    std::printf("%s on %s, %u cuts, %llu steps of %u in microbatches of %u; emulated: %s; %s\n",
                options_.model.c_str(), data_name().c_str(), network.stages() - 1,
                static_cast<unsigned long long>(graphs_.steps), graphs_.job.batch_size,
                graphs_.job.microbatch_size, network.describe().c_str(),
                backend_.numerics_fingerprint().c_str());
    std::printf("%-8s %-36s %7s %4s %6s %9s %9s %10s\n", "policy", "codec", "ratio", "seed", "step", "loss",
                "dense fwd", "emulated s");
    std::fflush(stdout);
  }

  void print(const Network& network, const Policy& policy, const Curve& curve, uint64_t seed,
             const Point& point) const {
    if (options_.json)
      return print_line({{"event", "row"},
                         {"model", options_.model},
                         {"data", data_name()},
                         {"cuts", network.stages() - 1},
                         {"policy", policy.kind_name()},
                         {"codec", curve.codec},
                         {"ratio", curve.ratio},
                         {"seed", seed},
                         {"step", point.step},
                         {"loss", point.loss},
                         {"loss_uncompressed_forward", point.loss_uncompressed_forward},
                         {"emulated_seconds", point.seconds},
                         {"training_loss", point.training_loss}});
    std::printf("%-8s %-36s %7.2f %4llu %6llu %9.4f %9.4f %10.2f\n", std::string(policy.kind_name()).c_str(),
                shown(curve.codec).c_str(), curve.ratio, static_cast<unsigned long long>(seed),
                static_cast<unsigned long long>(point.step), point.loss, point.loss_uncompressed_forward,
                point.seconds);
    std::fflush(stdout);
  }

  static double mean(const std::vector<double>& numbers) {
    double sum = 0;
    for (const double x : numbers) sum += x;
    return sum / static_cast<double>(numbers.size());
  }
  // Of the sample; 0 of one seed.
  static double deviation(const std::vector<double>& numbers) {
    const double middle = mean(numbers);
    double sum = 0;
    for (const double x : numbers) sum += (x - middle) * (x - middle);
    return numbers.size() < 2 ? 0 : std::sqrt(sum / static_cast<double>(numbers.size() - 1));
  }

  void summarise(const Network& network, const Policy& policy, const Final& of) const {
    const bool passes = mean(of.relative) <= kWithin;
    const bool is_there = of.steps_there.size() == of.relative.size();
    const double steps = is_there ? mean(of.steps_there) : std::numeric_limits<double>::infinity();
    const bool is_dense = policy.kind == plan::CompressionPolicy::None;
    if (options_.json)
      return print_line({{"event", "summary"},
                         {"model", options_.model},
                         {"data", data_name()},
                         {"cuts", network.stages() - 1},
                         {"policy", policy.kind_name()},
                         {"codec", of.codec},
                         {"ratio", of.ratio},
                         {"seeds", of.relative.size()},
                         {"steps", graphs_.steps},
                         {"relative_loss", mean(of.relative)},
                         {"relative_loss_deviation", deviation(of.relative)},
                         {"relative_loss_uncompressed_forward", mean(of.relative_uncompressed)},
                         {"emulated_step_seconds", of.seconds},
                         {"seconds_until_within_1_percent", is_there ? Json(steps * of.seconds) : Json()},
                         {"alone_step_seconds", network.alone_seconds()},
                         {"passes", passes}});
    if (&policy == &options_.policies.front())
      std::printf("\n%-8s %-36s %7s %20s %10s %12s %10s\n", "policy", "codec", "ratio",
                  "last loss above dense", "dense fwd", "emulated s/step", "s until 1%");
    std::printf("%-8s %-36s %7.2f %+9.2f%% +- %5.2f%% %+9.2f%% %12.4f %10.1f  %s\n",
                std::string(policy.kind_name()).c_str(), shown(of.codec).c_str(), of.ratio,
                100 * mean(of.relative), 100 * deviation(of.relative), 100 * mean(of.relative_uncompressed),
                of.seconds, steps * of.seconds, passes ? "passes" : "more than 1% above");
    if (is_dense)
      std::printf("%-8s %-36s %7s %20s %10s %12.4f %10.1f\n", "", "one of the machines alone", "", "", "",
                  network.alone_seconds(), steps * network.alone_seconds());
    std::fflush(stdout);
  }

  const Options& options_;
  const JobGraphs& graphs_;
  peer::Backend& backend_;
  std::map<uint64_t, Curve> dense_;  // by seed
};

Status run(int argc, char** argv) {
  WEFT_TRY(const Options options, parse_options(argc, argv));
  WEFT_TRY(const auto backend, peer::make_cpu_backend({.threads = options.threads, .pin = false}));
  const fs::path job = fs::path(WEFT_SOURCE_DIR) / "examples" /
                       (options.model == "gpt" ? "gpt" : "fashion-mnist") / "job.yaml";
  WEFT_TRY(const JobGraphs graphs, open_job(job, sets_of(options), backend->traits(), options.held_out));
  return Bench(options, graphs, *backend).run();
}

}  // namespace
}  // namespace weft::learning

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (std::strcmp(argv[i], "--help") == 0 || std::strcmp(argv[i], "-h") == 0) {
      std::fputs(weft::learning::kUsage, stdout);
      return 0;
    }
  const weft::Status status = weft::learning::run(argc, argv);
  if (status) return 0;
  std::fprintf(stderr, "convergence: %s\n", status.error().message.c_str());
  return status.error().code == weft::ErrorCode::InvalidArgument ? 2 : 1;
}
