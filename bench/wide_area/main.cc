// Training over wide-area links: who is how fast with which plan and which compression. bench/wan runs it.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/wide_area/compare.h"
#include "compress/codec.h"
#include "configs/cluster.h"

namespace weft::bench {
namespace {

using Json = nlohmann::ordered_json;

// The longest round, and the most rounds between two agreements that are waited for: what is played takes
// memory by steps.
constexpr uint64_t kEveryMax = 10'000, kSettleEveryMax = 64;

constexpr const char* kUsage =
    R"(usage: bench/wan [--links FILE] [--model gpt|resnet] [--format json] [OPTIONS]

How fast a model trains over wide-area links, by planning strategy and compression: a line for each of
{equal-ops, equal-ops-joining, op-fence, auto} x {none, uniform, adatopk, auto}, in two settings:
  free    fewer peers, or one, are a legal answer
  forced  no site can be left out: all memories are scaled by the largest factor at which that is so and each
          strategy still has a plan (forced_by: memory). Where there is no such factor memories stay, and
          every site must hold at least one op with parameters, whatever the strategy (forced_by: rule)

The same batch and the same 1F1B schedule for all; equal-ops is the median of five random orders. A plan is
played on a virtual clock, by the production state machines of its stages over the production models of
links; devices take the time that the catalogue's figures give each kernel. The prediction is the planner's.

  --links FILE     a network: JSON with "regions" (N names), "round_trip_ms" and "bandwidth_gbit_per_s" (N rows
                   of N numbers, from row to column; the diagonal is within a region). Eight devices stand in
                   each region. Without it: the built-in topologies
  --gpu TYPE       of the catalogue, for --links (default: rtx3080)
  --model MODEL    gpt2-small, gpt2-xl: 1,024 tokens, 128 samples a step, one a microbatch; gpt: the small one
                   with --links, the other without; resnet: ResNet-101, 256 images a step, four a microbatch.
                   May be repeated. Default: gpt and resnet
  --topology NAME  sites-48, scattered-48, world, campus-48, six-sites, homes (both with all bandwidths), or a
                   cluster file; may be repeated
  --bandwidth B    between the six sites, or of each home's line: 8Mbit, 20Mbit, 100Mbit, 1Gbit or any other;
                   may be repeated
  --host-memory M  that each device has beside its own, as 32GiB: copies of the state lie there (default:
                   none, so that they lie on the device)
  --setting S      free or forced alone
  --strategy S, --compression C   that one alone; may be repeated
  --job FILE       a job file instead of the models, as for weft plan; --set KEY=VALUE changes it
  --real           of --job, with one --topology: over real sockets too, one process a device (clock: real)
  --netns          the same, over real TCP: each process in a network namespace of its own behind a TUN link, as
                   root; SEED, QUEUE_MS and CONGESTION in the environment are the links'
  --replicas N     rows for replicas with local steps, too: so many, or as many as pay (auto). Each is a
                   pipeline with the compression auto, or the last one asked for. They are compared with the
                   best pipeline, and with the sum of what sites, or machines, reach alone. What replicas tell
                   each other is played with their steps, on the same lines
  --every H        steps that a replica makes between two agreements (default: 30)
  --shares S       auto (default): a slower replica makes fewer of them; equal: each makes all
  --codec C        of what replicas tell each other; may be repeated (default: int4 and topk:0.02:int4)
  --settle-every R 1: each agreement is waited for. More: only every R-th is, the others travel while the next
                   round is made; may be repeated (default: 1 and 8)
  --fragments F    of rounds that overlap: they are about one of F parts of the model in turn, and have an F-th of
                   the steps (default: 1)
  --tasks-ahead N  that a stage hands its device (default: 2, as peers have it; a prediction has 1)
  --quick          an eighth of the microbatches
  --format json    JSON lines: rows ("event": "row"), those of replicas ("replicas"), then one "topology" a
                   network and model
)";

struct Options {
  std::optional<std::string> links, job;
  std::vector<std::string> sets;
  std::string gpu = "rtx3080";
  std::vector<std::string> models, topologies, bandwidths;
  std::optional<Bytes> host_memory;
  CompareOptions compare;
  bool json = false, quick = false;
};

[[noreturn]] void usage_error(const std::string& what) {
  std::fprintf(stderr, "bench/wan: %s\ntry bench/wan --help\n", what.c_str());
  std::exit(2);
}
template <typename T>
T value_or_exit(Result<T> result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "bench/wan: %s\n", result.error().message.c_str());
  std::exit(1);
}

void choose(std::vector<std::string>& of, std::vector<std::string> legal, const std::string& name,
            const std::string& value) {
  if (std::find(legal.begin(), legal.end(), value) == legal.end()) {
    std::string names;
    for (const std::string& one : legal) names += (names.empty() ? "" : ", ") + one;
    usage_error(name + " " + value.substr(0, 80) + ": there are " + names);
  }
  of.push_back(value);
}

uint64_t count_or_exit(const std::string& name, const std::string& value, uint64_t most) {
  uint64_t count = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), count);
  if (error != std::errc() || end != value.data() + value.size() || count < 1 || count > most)
    usage_error(name + " " + value.substr(0, 80) + ": want a number from 1 to " + std::to_string(most) +
                (name == "--replicas" ? ", or auto" : ""));
  return count;
}

// Whether it is one of those of replicas.
bool take_replicas_option(const std::string& name, const std::function<std::string()>& value,
                          ReplicasOptions& replicas) {
  if (name == "--replicas") {
    const std::string count = value();
    if (count == "auto") return true;
    replicas.count = static_cast<uint32_t>(count_or_exit(name, count, replicas::kReplicasMax));
    replicas.count_max = 0;
  } else if (name == "--every") {
    replicas.every = count_or_exit(name, value(), kEveryMax);
  } else if (name == "--shares") {
    std::vector<std::string> chosen;
    choose(chosen, {"auto", "equal"}, name, value());
    replicas.shares_by_speed = chosen.front() == "auto";
  } else if (name == "--codec") {
    const std::string text = value();
    const auto codec = compress::parse(text);
    if (!codec) usage_error(name + " " + text.substr(0, 80) + ": " + codec.error().message);
    replicas.codecs.push_back(*codec);
  } else if (name == "--fragments") {
    replicas.fragments = static_cast<uint32_t>(count_or_exit(name, value(), replicas::kFragmentsMax));
  } else if (name == "--settle-every") {
    replicas.settle_every.push_back(count_or_exit(name, value(), kSettleEveryMax));
  } else {
    return false;
  }
  return true;
}

ReplicasOptions with_defaults(ReplicasOptions replicas) {
  if (replicas.codecs.empty())
    for (const char* name : {"int4", "topk:0.02:int4"}) replicas.codecs.push_back(*compress::parse(name));
  if (replicas.settle_every.empty()) replicas.settle_every = {1, 8};
  return replicas;
}

Options parse(int argc, char** argv) {
  Options options;
  const CompareOptions all;
  std::vector<std::string> strategies, compressions, settings;
  ReplicasOptions replicas;
  bool has_replicas = false;
  std::string of_replicas;  // the first option that means nothing without --replicas
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 == argc) usage_error(name + " wants a value");
      return argv[++i];
    };
    if (take_replicas_option(name, value, replicas)) {
      if (name == "--replicas")
        has_replicas = true;
      else if (of_replicas.empty())
        of_replicas = name;
    } else if (name == "--help" || name == "-h") {
      std::fputs(kUsage, stdout);
      std::exit(0);
    } else if (name == "--links") {
      options.links = value();
    } else if (name == "--list-devices") {  // of a cluster file, for bench/wide_area/real.sh
      const auto cluster = value_or_exit(configs::load_cluster(value()));
      for (const configs::ClusterDevice& device : cluster.devices)
        std::printf("%s %s %s\n", device.type.c_str(), device.region.c_str(), device.name.c_str());
      std::exit(0);
    } else if (name == "--tasks-ahead") {
      options.compare.tasks_ahead =
          std::max(1u, static_cast<uint32_t>(std::strtoul(value().c_str(), nullptr, 10)));
    } else if (name == "--job") {
      options.job = value();
    } else if (name == "--set") {
      options.sets.push_back(value());
    } else if (name == "--gpu") {
      options.gpu = value();
    } else if (name == "--model") {
      choose(options.models, {"gpt", "resnet", "gpt2-small", "gpt2-xl"}, name, value());
    } else if (name == "--topology") {
      options.topologies.push_back(value());
    } else if (name == "--bandwidth") {
      options.bandwidths.push_back(value());
    } else if (name == "--host-memory") {
      const std::string text = value();
      options.host_memory = configs::parse_memory(text);
      if (!options.host_memory)
        usage_error("--host-memory " + text.substr(0, 80) + ": want a size, as 32GiB");
    } else if (name == "--setting") {
      choose(settings, all.settings, name, value());
    } else if (name == "--strategy") {
      choose(strategies, all.strategies, name, value());
    } else if (name == "--compression") {
      choose(compressions, all.compressions, name, value());
    } else if (name == "--quick") {
      options.quick = true;
    } else if (name == "--format") {
      if (const std::string format = value(); format != "json" && format != "text")
        usage_error("--format " + format.substr(0, 80) + ": there are text and json");
      else
        options.json = format == "json";
    } else {
      usage_error("no such option: " + name.substr(0, 80));
    }
  }
  if (has_replicas)
    options.compare.replicas = with_defaults(std::move(replicas));
  else if (!of_replicas.empty())
    usage_error(of_replicas + " is of replicas: say --replicas auto, or how many");
  if (!strategies.empty()) options.compare.strategies = strategies;
  if (!compressions.empty()) options.compare.compressions = compressions;
  if (!settings.empty()) options.compare.settings = settings;
  if (options.models.empty()) options.models = {"gpt", "resnet"};
  if (options.links && (!options.topologies.empty() || !options.bandwidths.empty()))
    usage_error("--links names the network: --topology and --bandwidth are of the built-in ones");
  return options;
}

std::vector<Topology> topologies_of(const Options& options) {
  if (options.links) return {value_or_exit(topology_of_links(*options.links, options.gpu))};
  std::vector<std::string> names = options.topologies;
  if (names.empty() && options.bandwidths.empty()) names = {"sites-48", "scattered-48", "world", "campus-48"};
  if (options.topologies.empty()) names.push_back("six-sites");
  std::vector<Topology> topologies;
  for (const std::string& name : names) {
    if (name == "six-sites" || name == "homes") {
      std::vector<std::string> bandwidths = options.bandwidths;
      if (bandwidths.empty()) bandwidths = {"8Mbit", "20Mbit", "100Mbit", "1Gbit"};
      for (const std::string& bandwidth : bandwidths) {
        const auto bytes = configs::parse_bandwidth(bandwidth);
        if (!bytes) usage_error("--bandwidth " + bandwidth.substr(0, 80) + ": want a rate, as 20Mbit");
        topologies.push_back(value_or_exit((name == "homes" ? homes : six_sites)(bandwidth, *bytes * 8)));
      }
      continue;
    }
    const bool is_file = name.find('/') != std::string::npos || name.find('.') != std::string::npos;
    topologies.push_back(
        value_or_exit(topology_of_cluster(is_file ? name : "examples/plans/" + name + ".yaml")));
  }
  return topologies;
}

Json number(std::optional<double> value) { return value ? Json(*value) : Json(); }

Json to_json(const Row& row) {
  Json json{{"event", "row"},         {"topology", row.topology}, {"model", row.model},
            {"setting", row.setting}, {"strategy", row.strategy}, {"compression", row.compression}};
  if (row.setting == "forced") {
    json["forced_by"] = row.forced_by;
    json["memory_factor"] = row.memory_factor;
  }
  if (!row.has_plan()) {
    json["problem"] = row.problem;
    return json;
  }
  json["samples_per_second"] = row.samples_per_second;
  json["predicted_samples_per_second"] = row.predicted_samples_per_second;
  json["samples_per_second_of_first_three_steps"] = row.from_start;
  json["bytes_per_step"] = row.bytes_per_step;
  json["clock"] = row.clock;
  json["why"] = row.why;
  json["stages"] = row.stages;
  json["sites"] = row.sites;
  json["planning_seconds"] = row.planning_seconds;
  return json;
}

void print(const Row& row) {
  std::printf("%-18s %-10s %-6s %-17s %-8s ", row.topology.c_str(), row.model.c_str(), row.setting.c_str(),
              row.strategy.c_str(), row.compression.c_str());
  if (!row.has_plan()) {
    std::printf("no plan: %s\n", row.problem.c_str());
    return;
  }
  std::printf("%10.4g /s, predicted %10.4g (%+5.1f%%; from the start %+5.1f%%), %9.3g B a step, %s",
              row.samples_per_second, row.predicted_samples_per_second, 100 * row.error(),
              100 * (row.from_start / row.predicted_samples_per_second - 1),
              static_cast<double>(row.bytes_per_step), row.clock.c_str());
  if (!row.why.empty()) std::printf(" (%s)", row.why.c_str());
  std::printf(", %u stages on %u sites", row.stages, row.sites);
  if (row.setting == "forced") std::printf(", forced_by: %s", row.forced_by.c_str());
  std::printf(" [%.1f + %.1f s]\n", row.planning_seconds, row.playing_seconds);
}

const char* name_of_waiting(const ReplicasRow& row) { return row.settle_every > 1 ? "overlaps" : "waits"; }
std::optional<double> over(const ReplicasRow& row, std::optional<double> of) {
  return row.has_plan() && of ? std::optional(row.samples_per_second / *of) : std::nullopt;
}

Json to_json(const ReplicasRow& row) {
  Json json{
      {"event", "replicas"},    {"topology", row.topology},         {"model", row.model},
      {"setting", row.setting}, {"compression", row.compression},   {"codec", compress::name(row.codec)},
      {"every", row.every},     {"settle_every", row.settle_every}, {"fragments", row.fragments}};
  if (!row.has_plan()) {
    json["problem"] = row.problem;
    return json;
  }
  json["replicas"] = row.replicas;
  json["stages"] = row.stages;
  json["sites"] = row.sites;
  json["shares"] = row.shares;
  json["rounds_played"] = row.rounds;
  json["agreements_share_lines_with_steps"] = true;
  json["samples_per_second"] = row.samples_per_second;
  json["predicted_samples_per_second"] = row.predicted_samples_per_second;
  json["played_over_predicted"] = row.samples_per_second / row.predicted_samples_per_second;
  json["best_pipeline"] = number(row.best_pipeline);
  json["best_pipeline_is"] = row.best_strategy + "+" + row.best_compression;
  json["over_best_pipeline"] = number(over(row, row.best_pipeline));
  json["sites_alone"] = number(row.sites_alone);
  json["of_sites_alone"] = number(over(row, row.sites_alone));
  json["machines_alone"] = number(row.machines_alone);
  json["of_machines_alone"] = number(over(row, row.machines_alone));
  json["agreement_seconds"] = seconds(row.agreement);
  json["predicted_agreement_seconds"] = seconds(row.predicted_agreement);
  json["agreement_bytes_per_round"] = row.bytes_of_agreement;
  json["planning_seconds"] = row.planning_seconds;
  json["playing_seconds"] = row.playing_seconds;
  return json;
}

void print(const ReplicasRow& row) {
  std::printf("%-18s %-10s %-6s %-17s %-8s ", row.topology.c_str(), row.model.c_str(), row.setting.c_str(),
              ("replicas," + compress::name(row.codec)).c_str(), name_of_waiting(row));
  if (!row.has_plan()) {
    std::printf("no plan: %s\n", row.problem.c_str());
    return;
  }
  std::printf("%10.4g /s, predicted %10.4g (%+5.1f%%)", row.samples_per_second,
              row.predicted_samples_per_second, 100 * row.error());
  if (row.best_pipeline)
    std::printf(", %.3gx the best pipeline (%s+%s)", *over(row, row.best_pipeline), row.best_strategy.c_str(),
                row.best_compression.c_str());
  if (row.sites_alone) std::printf(", %.3g of sites alone", *over(row, row.sites_alone));
  if (row.machines_alone) std::printf(", %.3g of machines alone", *over(row, row.machines_alone));
  std::printf(
      ", %u replicas of %u stages on %u sites, every %llu; an agreement %.3g s, predicted %.3g, %.3g B, "
      "on the same lines as steps [%.1f + %.1f s]\n",
      row.replicas, row.stages, row.sites, static_cast<unsigned long long>(row.every), seconds(row.agreement),
      seconds(row.predicted_agreement), static_cast<double>(row.bytes_of_agreement), row.planning_seconds,
      row.playing_seconds);
}

// The figures of TARGETS.md, S7.
struct Ratios {
  std::optional<double> forced_over_equal_ops, forced_over_dense, fence_over_equal_ops;
  std::optional<double> free_of_network, free_over_machine, free_over_site;
  double error_max = 0;  // of predictions
};
Ratios ratios_of(const Summary& summary) {
  const auto over = [](const Row* row, const Row* other) {
    return row && other ? std::optional(row->samples_per_second / other->samples_per_second) : std::nullopt;
  };
  const auto share = [](const Row* row, std::optional<double> of) {
    return row && of ? std::optional(row->samples_per_second / *of) : std::nullopt;
  };
  Ratios ratios;
  const Row* best = summary.find("forced", "auto", "auto");
  const Row* plain = summary.find("forced", "equal-ops", "none");
  ratios.forced_over_equal_ops = over(best, plain);
  ratios.forced_over_dense = over(best, summary.find("forced", "auto", "none"));
  ratios.fence_over_equal_ops = over(summary.find("forced", "op-fence", "adatopk"), plain);
  const Row* free = summary.find("free", "auto", "auto");
  ratios.free_of_network = share(free, summary.free_network);
  ratios.free_over_machine = share(free, summary.best_machine);
  ratios.free_over_site = share(free, summary.best_site);
  for (const Row& row : summary.rows)
    if (row.has_plan()) ratios.error_max = std::max(ratios.error_max, std::abs(row.error()));
  return ratios;
}

void print_json(const Summary& summary) {
  const Ratios ratios = ratios_of(summary);
  Json json{{"event", "topology"},
            {"topology", summary.topology},
            {"model", summary.model},
            {"best_machine", number(summary.best_machine)},
            {"best_site", number(summary.best_site)},
            {"machines_alone", number(summary.machines_alone)},
            {"sites_alone", number(summary.sites_alone)},
            {"free_network", number(summary.free_network)},
            {"forced_by", summary.forced_by},
            {"memory_factor", summary.memory_factor},
            {"why_rule", summary.why_rule},
            {"forced_auto_auto_over_equal_ops_none", number(ratios.forced_over_equal_ops)},
            {"forced_auto_auto_over_auto_none", number(ratios.forced_over_dense)},
            {"forced_op_fence_adatopk_over_equal_ops_none", number(ratios.fence_over_equal_ops)},
            {"free_auto_auto_of_free_network", number(ratios.free_of_network)},
            {"free_auto_auto_over_best_machine", number(ratios.free_over_machine)},
            {"free_auto_auto_over_best_site", number(ratios.free_over_site)},
            {"prediction_error_max", ratios.error_max}};
  std::printf("%s\n", json.dump().c_str());
}

void print_text(const Summary& summary) {
  const Ratios ratios = ratios_of(summary);
  const auto show = [](std::optional<double> value, const char* unit) {
    if (!value) return std::string("-");  // a row of it was not asked for, or has no plan
    char text[32];
    std::snprintf(text, sizeof(text), "%.4g%s", *value, unit);
    return std::string(text);
  };
  std::printf("%s, %s: best machine %s, best site %s, free network %s\n", summary.topology.c_str(),
              summary.model.c_str(), show(summary.best_machine, " /s").c_str(),
              show(summary.best_site, " /s").c_str(), show(summary.free_network, " /s").c_str());
  if (!summary.forced_by.empty())
    std::printf(
        "  forced by %s (memories x %.4g): auto+auto %s equal-ops+none, %s auto+none; op-fence+adatopk "
        "%s equal-ops+none\n",
        summary.forced_by.c_str(), summary.memory_factor, show(ratios.forced_over_equal_ops, "x").c_str(),
        show(ratios.forced_over_dense, "x").c_str(), show(ratios.fence_over_equal_ops, "x").c_str());
  if (!summary.why_rule.empty()) std::printf("  rule: %s\n", summary.why_rule.c_str());
  std::printf(
      "  free: auto+auto %s of the free network, %s the best machine, %s the best site; predictions "
      "within %.1f%%\n\n",
      show(ratios.free_of_network, "").c_str(), show(ratios.free_over_machine, "x").c_str(),
      show(ratios.free_over_site, "x").c_str(), 100 * ratios.error_max);
}

Model model_of(const std::string& name, const Options& options) {
  if (name == "job") return value_or_exit(model_of_job(*options.job, options.sets));
  if (name == "resnet") return resnet101(options.quick ? 8 : 64);
  const uint32_t microbatches = options.quick ? 16 : 128;
  return name == "gpt2-small" || (name == "gpt" && options.links) ? gpt2_small(microbatches)
                                                                  : gpt2_xl(microbatches);
}

int run(Options options) {
  const bool json = options.json;
  const auto show = [json](const auto& row) {
    json ? static_cast<void>(std::printf("%s\n", to_json(row).dump().c_str())) : print(row);
    std::fflush(stdout);
  };
  options.compare.on_row = show;
  options.compare.on_replicas = show;
  std::vector<Topology> topologies = topologies_of(options);
  if (options.host_memory)
    for (Topology& topology : topologies)
      topology.cluster = with_host_memory(topology.cluster, *options.host_memory);
  if (options.job) options.models = {"job"};
  for (const std::string& name : options.models) {
    const Model model = model_of(name, options);
    for (const Topology& topology : topologies) {
      const Summary summary = compare(topology, model, options.compare);
      json ? print_json(summary) : print_text(summary);
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) { return weft::bench::run(weft::bench::parse(argc, argv)); }
