// weft-sim: runs seeds, says what it found.
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "sim/simulation.h"

namespace {

constexpr const char* kUsage =
    "weft-sim --seed S --peers N [--seeds COUNT] [--minutes VIRTUAL] [--no-faults] [--bug NAME] [--trace] "
    "[--quiet]\n"
    "weft-sim --seed S --peers N --drift drop|roam|sway [--stay]\n"
    "weft-sim --seed S --peers N --slow direct|relayed|unforeseen\n"
    "weft-sim --seed S --peers N --liars PERCENT [--lie NAME] [--no-faults]\n"
    "weft-sim --seed S --peers N --replicas|--followers [--liars PERCENT] [--lie NAME] [--no-faults] [--bug "
    "NAME]\n"
    "weft-sim --seed S --peers N --exact [--no-faults]\n"
    "weft-sim --list-bugs | --list-lies\n"
    "Runs the broker's and the peers' state machines on a virtual clock, with faults drawn from the seed.\n"
    "--minutes: how long faults go on, in virtual time. --drift: no faults, but lines that change while a "
    "job runs, which is planned\n"
    "again for it; --stay: which is not. --liars: so many of a hundred peers lie, each by a script of its "
    "own, "
    "or all of them as --lie says. --slow: no faults, tensors of 64 MiB over lines of 8 Mbit/s. Exit "
    "status 1: something was violated.\n";

struct Arguments {
  weft::sim::SimulationOptions simulation;
  uint64_t seeds = 1;
  std::string bug, lie;
  bool quiet = false;
};

[[noreturn]] void usage(const std::string& problem) {
  std::fprintf(stderr, "%s\n%s", problem.c_str(), kUsage);
  std::exit(2);
}

uint64_t number_of(const char* option, const char* text) {
  char* end = nullptr;
  const uint64_t number = text == nullptr ? 0 : std::strtoull(text, &end, 10);
  if (text == nullptr || *text == 0 || *end != 0) usage(std::string(option) + " needs a number");
  return number;
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  bool stays = false;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    const auto number = [&] { return number_of(argv[i++], value); };
    if (option == "--seed") {
      arguments.simulation.seed = number();
    } else if (option == "--peers") {
      arguments.simulation.peers = static_cast<uint32_t>(number());
      if (arguments.simulation.peers < 3 || arguments.simulation.peers > 999) usage("--peers: from 3 to 999");
    } else if (option == "--seeds") {
      arguments.seeds = number();
    } else if (option == "--minutes") {
      arguments.simulation.chaos = std::chrono::minutes(number());
    } else if (option == "--no-faults") {
      arguments.simulation.faults = false;
    } else if (option == "--followers" || option == "--replicas") {
      arguments.simulation.replicas = true;
      arguments.simulation.followers |= option == "--followers";
    } else if (option == "--exact") {
      arguments.simulation.exact = true;
    } else if (option == "--drift") {
      ++i;
      const std::string lines = value == nullptr ? "" : value;
      if (lines != "drop" && lines != "roam" && lines != "sway") usage("--drift: drop, roam or sway");
      using Lines = weft::sim::DriftScenario::Lines;
      arguments.simulation.drift.emplace().lines = lines == "drop"   ? Lines::Drop
                                                   : lines == "roam" ? Lines::Roam
                                                                     : Lines::Sway;
      arguments.simulation.faults = false;
      arguments.simulation.chaos = std::chrono::hours(4);
    } else if (option == "--slow") {
      ++i;
      const std::string way = value == nullptr ? "" : value;
      if (way != "direct" && way != "relayed" && way != "unforeseen")
        usage("--slow: direct, relayed or unforeseen");
      arguments.simulation.slow.emplace().relayed = way == "relayed";
      arguments.simulation.slow->foreseen = way != "unforeseen";
      arguments.simulation.faults = false;
      arguments.simulation.chaos = std::chrono::hours(12);
    } else if (option == "--stay") {
      stays = true;
    } else if (option == "--trace") {
      arguments.simulation.trace = true;
    } else if (option == "--quiet") {
      arguments.quiet = true;
    } else if (option == "--bug") {
      ++i;
      const auto bug = weft::sim::bug_named(value == nullptr ? "" : value);
      if (!bug) usage("--bug: there is no such bug; --list-bugs lists them");
      arguments.simulation.bug = *bug;
      arguments.bug = value;
    } else if (option == "--liars") {
      arguments.simulation.liars = static_cast<uint32_t>(number());
      if (arguments.simulation.liars > 100) usage("--liars: of a hundred peers");
    } else if (option == "--lie") {
      ++i;
      arguments.simulation.lie = weft::sim::lie_named(value == nullptr ? "" : value);
      if (!arguments.simulation.lie) usage("--lie: there is no such lie; --list-lies lists them");
      arguments.lie = value;
    } else if (option == "--list-lies") {
      for (const auto& lie : weft::sim::lies())
        std::printf("%-20.*s %.*s%s\n", static_cast<int>(lie.name.size()), lie.name.data(),
                    static_cast<int>(lie.what.size()), lie.what.data(),
                    lie.is_believed ? " (believed: a job may end by it, or wrong, or not at all)" : "");
      std::exit(0);
    } else if (option == "--list-bugs") {
      for (const auto& bug : weft::sim::bugs())
        std::printf("%-26.*s %.*s\n", static_cast<int>(bug.name.size()), bug.name.data(),
                    static_cast<int>(bug.what.size()), bug.what.data());
      std::exit(0);
    } else {
      usage("unknown option " + option);
    }
  }
  if (arguments.simulation.drift) arguments.simulation.drift->moves = !stays;
  return arguments;
}

std::string again_with_liars(const Arguments& arguments) {
  if (arguments.simulation.liars == 0) return {};
  return " --liars " + std::to_string(arguments.simulation.liars) +
         (arguments.lie.empty() ? "" : " --lie " + arguments.lie);
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments = parse(argc, argv);
  double wall_sum = 0, virtual_sum = 0;
  uint64_t lies = 0;
  for (uint64_t s = 0; s < arguments.seeds; ++s) {
    weft::sim::SimulationOptions options = arguments.simulation;
    options.seed += s;
    const auto began = std::chrono::steady_clock::now();
    const auto result = weft::sim::simulate(options);
    const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    const double virtual_seconds = weft::seconds(result.virtual_time);
    wall_sum += wall;
    virtual_sum += virtual_seconds;
    if (options.liars != 0 && (!arguments.quiet || result.failure))
      std::printf("seed %" PRIu64 ": %" PRIu64 " liars, %" PRIu64 " lies, %" PRIu64 " refused, %" PRIu64
                  " recoveries\n",
                  options.seed, result.liars, result.lies, result.counts.refused, result.counts.recoveries);
    lies += result.lies;
    if (!arguments.quiet || result.failure)
      std::printf("seed %" PRIu64 ": %s; %u jobs, %" PRIu64 " steps, %" PRIu64 " plans, %" PRIu64
                  " resumed, %" PRIu64 " checkpoints; %.0f s in %.3f s (%.0fx); %" PRIu64
                  " events, hash %016" PRIx64 "\n",
                  options.seed, result.failure ? "FAILED" : "ok", result.jobs, result.counts.steps,
                  result.counts.plans, result.counts.resumed, result.counts.checkpoints, virtual_seconds,
                  wall, virtual_seconds / wall, result.notes, result.trace_hash);
    if (options.replicas && !arguments.quiet)
      std::printf("seed %" PRIu64 ": %" PRIu64 " agreements, %" PRIu64 " left out, %" PRIu64
                  " given again, %" PRIu64 " grown, %" PRIu64 " shrunk, %" PRIu64 " inherited, %" PRIu64
                  " copies kept, %" PRIu64 " followed, %" PRIu64 " caught up\n",
                  options.seed, result.replicas.agreements, result.replicas.left_out,
                  result.replicas.given_again, result.replicas.grown, result.replicas.shrunk,
                  result.replicas.inherited, result.replicas.kept, result.replicas.followed,
                  result.replicas.caught_up);
    if (result.failure) {
      std::printf("%s\nThe last events (time, what, numbers as sim/world.h names them):\n%s",
                  result.failure->c_str(), result.last_notes.c_str());
      std::printf("violated: %s\nafter %" PRIu64 " seeds; again: weft-sim --seed %" PRIu64
                  " --peers %u%s%s%s%s%s%s\n",
                  result.failure->c_str(), s + 1, options.seed, options.peers,
                  options.chaos
                      ? (" --minutes " + std::to_string(*options.chaos / std::chrono::minutes(1))).c_str()
                      : "",
                  options.followers  ? " --followers"
                  : options.exact    ? " --exact"
                  : options.replicas ? " --replicas"
                                     : "",
                  options.faults ? "" : " --no-faults", arguments.bug.empty() ? "" : " --bug ",
                  arguments.bug.c_str(), again_with_liars(arguments).c_str());
      return 1;
    }
  }
  std::printf("%" PRIu64 " seeds: %.0f virtual s in %.1f s, %.0fx\n", arguments.seeds, virtual_sum, wall_sum,
              virtual_sum / wall_sum);
  if (arguments.simulation.liars != 0) std::printf("%" PRIu64 " lies\n", lies);
  return 0;
}
