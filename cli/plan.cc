// weft plan: what a job would do on a cluster, before anything runs.
#include <filesystem>
#include <fstream>

#include "cli/broker_address.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/json_event.h"
#include "cli/plan_html.h"
#include "cli/plan_placement.h"
#include "cli/plan_replicas.h"
#include "cli/plan_report.h"
#include "cli/plan_serving.h"
#include "plan/microbatch.h"
#include "train/plan_request.h"

namespace weft::cli {
namespace {
namespace fs = std::filesystem;

struct PlanOptions {
  std::string job, cluster, strategy, html;
  std::vector<std::string> sets, sizes, additions;
  std::string format = "text";
  bool live = false, compare = false, verbose = false;
  BrokerOptions broker;
  bool json() const { return format == "json"; }
};

plan::PlanRequest request_of(const PlanOptions& options, const PlannedJob& job, const PlanCluster& cluster) {
  plan::PlanRequest request = job.request();
  request.cluster = cluster.view;
  request.strategy = options.strategy.empty() ? job.job.placement.strategy : options.strategy;
  return request;
}

Result<PlanCluster> open_cluster(const PlanOptions& options) {
  if (options.live) return cluster_of_broker(options.broker, options.additions);
  if (options.cluster.empty())
    return fail(ErrorCode::InvalidArgument,
                "a plan is for a cluster: say --cluster FILE (examples/plans has some), or --live for the "
                "peers of your broker");
  return cluster_of_file(options.cluster, options.additions);
}

// Before minutes of planning are spent on a report that cannot be written.
Status check_html(const std::string& path) {
  if (path.empty()) return {};
  const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : fs::path(".");
  std::error_code code;
  if (!fs::is_directory(folder, code))
    return fail(ErrorCode::NotFound, "--html: there is no folder " + folder.string() + "; make it first");
  if (fs::is_directory(path, code))
    return fail(ErrorCode::InvalidArgument, "--html: " + path + " is a folder; name a file, as report.html");
  return {};
}

void put(const std::string& text) { std::fputs(text.c_str(), stdout); }

Status write_file(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) return fail(ErrorCode::PermissionDenied, "--html: cannot write " + path);
  return {};
}

template <typename Page>
Result<int> write_page(const PlanOptions& options, const Page& page) {
  if (options.html.empty()) return kExitOk;
  WEFT_TRY_STATUS(write_file(options.html, page()));
  if (!options.json()) std::printf("report: %s\n", options.html.c_str());
  return kExitOk;
}

Result<Duration> predicted_step(const PlanOptions& options, const PlannedJob& job,
                                const PlanCluster& cluster) {
  const plan::PlanRequest request = request_of(options, job, cluster);
  if (const auto replicas = train::replicas_request(job.job, request)) {
    WEFT_TRY(const auto plan, plan::make_replicas_plan(*replicas));
    return plan.predicted_step;
  }
  WEFT_TRY(const auto plan, plan::make_plan(request));
  return plan.predicted_step;
}

// Where the job leaves the size of a microbatch open, the fastest. The cluster without what the job excludes.
Result<PlannedJob> open_job(const PlanOptions& options, PlanCluster& cluster) {
  WEFT_TRY(const auto sizes, parse_sizes(options.sizes));
  const PlanCluster all = cluster;
  const auto open = [&](uint32_t microbatch_size) -> Result<PlannedJob> {
    WEFT_TRY(PlannedJob job, open_planned_job(options.job, options.sets, sizes, microbatch_size));
    cluster = all;
    WEFT_TRY_STATUS(apply_placement(job, cluster, /*complete=*/!options.live));
    return job;
  };
  WEFT_TRY(const auto microbatch_sizes, open_microbatch_sizes(options.job, options.sets));
  WEFT_TRY(PlannedJob job, open(0));
  if (microbatch_sizes.empty()) return job;
  WEFT_TRY(const auto choice, plan::choose_microbatch_size(
                                  microbatch_sizes, job.job.batch_size, [&](uint32_t size) -> Result<double> {
                                    WEFT_TRY(const PlannedJob sized, open(size));
                                    WEFT_TRY(const Duration step, predicted_step(options, sized, cluster));
                                    return 1 / sized.samples_per_second(seconds(step));
                                  }));
  WEFT_TRY(job, open(choice.size));
  job.notes.push_back(choice.why);
  return job;
}

Result<int> run_serving(const PlanOptions& options, const configs::Job& job) {
  if (options.compare || !options.strategy.empty() || !options.html.empty())
    return fail(job.error(ErrorCode::Unsupported, "task",
                          "--compare, --strategy and --html speak of steps, and this job serves"));
  WEFT_TRY(PlanCluster cluster, open_cluster(options));
  WEFT_TRY(const ServingShown shown, plan_serving_job(job, std::move(cluster), /*complete=*/!options.live));
  options.json() ? print_event(json_serving(shown)) : put(text_serving(shown, options.verbose));
  return kExitOk;
}

Result<int> run_replicas(const PlanOptions& options, const PlannedJob& job, const PlanCluster& cluster,
                         plan::ReplicasRequest request) {
  request.compares = true;
  WEFT_TRY(const plan::ReplicasPlan plan, plan::make_replicas_plan(request));
  const ReplicasShown shown{&job, &cluster, &plan};
  std::optional<ReplicasComparison> comparison;
  if (options.compare) {
    comparison = compare_replicas(job, request, plan);
    options.json() ? print_event(json_replicas_comparison(shown, *comparison))
                   : put(text_replicas_comparison(shown, *comparison));
  } else {
    options.json() ? print_event(json_replicas(shown)) : put(text_replicas(shown, options.verbose));
  }
  return write_page(options, [&] { return html_replicas(shown, comparison ? &*comparison : nullptr); });
}

Result<int> run_plan(const PlanOptions& options) {
  WEFT_TRY_STATUS(check_html(options.html));
  WEFT_TRY(const auto serves, find_serving_job(options.job, options.sets));
  if (serves) return run_serving(options, *serves);
  WEFT_TRY(PlanCluster cluster, open_cluster(options));
  WEFT_TRY(PlannedJob job, open_job(options, cluster));
  WEFT_TRY(const auto said, look_at_data(job));
  job.notes.insert(job.notes.end(), said.begin(), said.end());
  const plan::PlanRequest request = request_of(options, job, cluster);
  if (const auto replicas = train::replicas_request(job.job, request)) {
    bool is_pipeline = false;  // which is shown as such
    if (replicas->ranges > 0 && !options.compare) {
      WEFT_TRY(const auto plan, plan::make_replicas_plan(*replicas));
      is_pipeline = plan.ranges.empty();
    }
    if (!is_pipeline) return run_replicas(options, job, cluster, *replicas);
  }
  std::optional<Comparison> comparison;
  std::optional<plan::Plan> plan;
  if (options.compare) {
    WEFT_TRY(comparison, compare_strategies(job, cluster.view));
    for (const StrategyOutcome& row : comparison->strategies)
      if (row.plan && (!plan || row.name == request.strategy)) plan = row.plan;
    options.json() ? print_event(json_comparison(job, cluster, *comparison))
                   : put(text_comparison(job, cluster, *comparison));
  } else {
    WEFT_TRY(plan, plan::make_plan(request));
    for (const std::string& line : {train::describe_one_pipeline(job.job, job.graph),
                                    train::describe_replicas_gain(job.job, job.graph, request, *plan)})
      if (!line.empty()) plan->explanation.insert(plan->explanation.begin() + 1, line);
  }
  const PlanShown shown{&job, &cluster, &*plan, stage_facts(job.graph, *plan)};
  if (!options.compare)
    options.json() ? print_event(json_plan(shown)) : put(text_plan(shown, options.verbose));
  return write_page(options, [&] { return html_report(shown, comparison ? &*comparison : nullptr); });
}

}  // namespace

void add_plan(CommandLine program, Command& chosen) {
  CommandLine command =
      program.subcommand("plan", "show which device would run what, and how fast, without running anything");
  auto options = std::make_shared<PlanOptions>();
  command.option("job", options->job, "the job file (YAML), or a model (*.onnx)").required();
  const Option cluster = command.option("--cluster", options->cluster, "the cluster file (YAML)");
  command.flag("--live", options->live, "plan for the peers of the broker").excludes(cluster);
  const Option strategy =
      command.option("--strategy", options->strategy, "how to plan; an unknown name lists those there are");
  command
      .flag("--compare", options->compare, "every strategy, or number of replicas, and what there is to gain")
      .excludes(strategy);
  command.option("--set", options->sets, "override a key of the job, as batch_size=64 (may be given again)")
      .one_value_each();
  command.option("--size", options->sizes, "a symbolic dim of the model: name=number (may be given again)")
      .one_value_each();
  command
      .option("--add", options->additions,
              "one more device of the catalogue: TYPE@REGION (may be given again)")
      .one_value_each();
  command.format(options->format);
  command.option("--html", options->html, "write a report for a browser to this file");
  command.flag("--verbose", options->verbose, "show all that is known of the plan");
  options->broker.add_to(command);
  command.runs(chosen, [options] { return run_plan(*options); });
}

}  // namespace weft::cli
