#include "cli/broker_options.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "cli/quantities.h"
#include "cli/say.h"
#include "configs/cluster.h"
#include "configs/reader.h"
#include "configs/yaml.h"
#include "storage/text_file.h"

namespace weft::cli {
namespace {

using broker::BrokerServiceOptions;

constexpr int64_t kPlanMemoryMin = int64_t{64} << 20;
constexpr int kPlanSecondsMax = 24 * 60 * 60;

struct Row {
  std::string name;  // as a key of the file: replan_after is --replan-after
  std::string help;
  // `text` is not empty. Errors: InvalidArgument.
  Status (*parse)(const std::string& text, BrokerServiceOptions& into);
  bool is_path = false;     // the file says it relative to its own folder
  std::string former = {};  // the name that it had; still taken, with a notice
};

std::string option_of(const std::string& name) {
  std::string option = "--" + name;
  std::replace(option.begin(), option.end(), '_', '-');
  return option;
}

auto wrong(const char* option, const std::string& text, const std::string& why) {
  return fail(ErrorCode::InvalidArgument, std::string(option) + ": '" + text + "' " + why);
}

// All of the text. Nothing: it is no such number.
template <typename Number>
std::optional<Number> number_in(const std::string& text, Number low, Number high) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = error == std::errc{} && end == text.data() + text.size();
  return is_number && number >= low && number <= high ? std::optional(number) : std::nullopt;
}

Status parse_copy_rate(const std::string& text, BrokerServiceOptions& into) {
  broker::RunOptions& run = into.broker.run;
  run.copies_state = text != "none";
  run.copy_rate = 0;
  if (text == "unlimited" || text == "none") return {};
  const auto rate = configs::parse_bandwidth(text);
  if (!rate || *rate < 1)
    return wrong("--copy-rate", text, "is no rate; write 100Mbit, 1Gbit, unlimited or none");
  run.copy_rate = static_cast<uint64_t>(*rate);
  return {};
}

Status parse_egress(const std::string& text, BrokerServiceOptions& into) {
  if (text == "unlimited") return {};
  WEFT_TRY(const double rate, parse_rate_cap("--egress", text));
  into.egress = static_cast<uint64_t>(rate);
  return {};
}

Status parse_quota(const std::string& text, BrokerServiceOptions& into) {
  const auto bytes = configs::parse_memory(text);
  if (!bytes || bytes->value <= 0) return wrong("--quota", text, "is no amount of bytes; write 100GiB");
  into.quota.bytes = static_cast<uint64_t>(bytes->value);
  return {};
}

Status parse_plan_memory(const std::string& text, BrokerServiceOptions& into) {
  const auto memory = text == "unlimited" ? std::optional(Bytes{0}) : configs::parse_memory(text);
  if (!memory || (text != "unlimited" && memory->value < kPlanMemoryMin))
    return wrong("--plan-memory", text, "is no amount of at least 64 MiB; write 4GiB, or unlimited");
  into.plan_memory = *memory;
  return {};
}

// Either of two words, the second of which says no.
Status parse_word(const char* option, const std::string& text, const char* yes, const char* no, bool& into) {
  if (text != yes && text != no) return wrong(option, text, std::string("is neither ") + yes + " nor " + no);
  into = text == yes;
  return {};
}

Status parse_replan_after(const std::string& text, BrokerServiceOptions& into) {
  into.broker.drift.look_after = {};
  if (text == "never") return {};
  WEFT_TRY(into.broker.drift.look_after, parse_duration(text));
  return {};
}

Status parse_compare_share(const std::string& text, BrokerServiceOptions& into) {
  const auto share = number_in(text, 0.0, 0.5);
  if (!share) return wrong("--compare-share", text, "is no number from 0 to 0.5");
  into.broker.run.compare_share = *share;
  return {};
}

Status parse_keep(const std::string& text, BrokerServiceOptions& into) {
  if (text == "forever") return {};
  WEFT_TRY(into.keep, parse_duration(text));
  return {};
}

Status parse_plan_seconds(const std::string& text, BrokerServiceOptions& into) {
  const auto seconds = number_in(text, 1, kPlanSecondsMax);
  if (!seconds) return wrong("--plan-seconds", text, "is no number of seconds from 1 to a day");
  into.plan_time = std::chrono::seconds(*seconds);
  return {};
}

std::vector<Row> rows_of_door() {
  return {
      {"http",
       "HOST:PORT where served models are asked, by HTTP as OpenAI has it (weft token create --role "
       "caller); default: nowhere; any address but this machine's own needs a certificate",
       [](const std::string& text, BrokerServiceOptions& into) -> Status {
         WEFT_TRY(into.http, net::parse_endpoint(text));
         return {};
       }},
      {"http_cert", "PEM file of the certificate's chain for --http: TLS 1.3",
       [](const std::string& text, BrokerServiceOptions& into) -> Status {
         into.http_certificate = text;
         return {};
       },
       /*is_path=*/true},
      {"http_key", "PEM file of its key",
       [](const std::string& text, BrokerServiceOptions& into) -> Status {
         into.http_key = text;
         return {};
       },
       /*is_path=*/true},
      {"metrics",
       "HOST:PORT where Prometheus reads /metrics, as 127.0.0.1:7790; default: nowhere; it is HTTP without "
       "TLS or token, so keep it on this machine or a network of your own",
       [](const std::string& text, BrokerServiceOptions& into) -> Status {
         WEFT_TRY(into.metrics, net::parse_endpoint(text));
         return {};
       }},
  };
}

std::vector<Row> rows_of_blobs() {
  return {
      {"quota",
       "how many bytes of blobs that no job uses one key may leave here, as 100GiB; default "
       "1TiB",
       parse_quota},
      {"weights",
       "a folder of published weights (safetensors, GGUF, ONNX models with external data; the cache of "
       "Hugging "
       "Face will "
       "do): what of them a job brings need not be uploaded; whoever may submit, and knows a tensor's hash, "
       "can use it; default: none",
       [](const std::string& text, BrokerServiceOptions& into) {
         into.weights = text;
         return Status{};
       },
       /*is_path=*/true},
  };
}

std::vector<Row> rows_of_broker() {
  return {
      {"data_dir",
       "identity, tokens, jobs, models and data; made where it is missing; default "
       "~/.local/share/weft/broker",
       [](const std::string& text, BrokerServiceOptions& into) -> Status {
         into.data_dir = text;
         return {};
       },
       /*is_path=*/true},
      {"listen",
       "HOST:PORT; default " + net::to_string(BrokerServiceOptions{}.listen) + "; port 0: any free one",
       [](const std::string& text, BrokerServiceOptions& into) -> Status {
         WEFT_TRY(into.listen, net::parse_endpoint(text));
         return {};
       }},
      {"advertise", "HOST:PORT under which others reach this broker",
       [](const std::string& text, BrokerServiceOptions& into) -> Status {
         WEFT_TRY_STATUS(net::parse_endpoint(text));
         into.advertise = text;
         return {};
       }},
      {"lease", "how long a silent peer is kept, as 10s",
       [](const std::string& text, BrokerServiceOptions& into) -> Status {
         WEFT_TRY(into.broker.lease, parse_duration(text));
         return {};
       }},
      {"copy_rate",
       "how much of a peer's link copies of its state may take, as 100Mbit (the default) or "
       "unlimited; none: a lost peer takes its run back to the last checkpoint",
       parse_copy_rate,
       /*is_path=*/false,
       /*former=*/"replication_rate"},
      {"copies",
       "direct (the default): copies of a state go from its stage straight to a peer of the "
       "pool that stands by, where there is one; broker: all go through the broker",
       [](const std::string& text, BrokerServiceOptions& into) {
         return parse_word("--copies", text, "direct", "broker", into.broker.copies_go_direct);
       }},
      {"egress",
       "how much of this broker's line copies for peers that stand by may take in all, as "
       "500Mbit; what a stage loads goes first and at once; default unlimited",
       parse_egress},
      {"links",
       "measure (the default): peers that have nothing to do measure the links between them; "
       "assume: 10 Gbit/s within a region, 100 Mbit/s between others",
       [](const std::string& text, BrokerServiceOptions& into) {
         return parse_word("--links", text, "measure", "assume", into.broker.measures_links);
       }},
      {"replan_after",
       "how long after a run began, or the last look at it, it may be planned again with what "
       "was measured since, and moved where that pays; default 30s; never",
       parse_replan_after},
      {"compare_share",
       "of the time of a run over compressed links, what may go into running a microbatch over "
       "dense ones beside, to see what compression does to loss and gradient; default 0.02; 0: "
       "never",
       parse_compare_share},
      {"plan_memory",
       "what planning a job, in a process of its own, may take, as 4GiB (the default) or "
       "unlimited; a model that takes more fails its job",
       parse_plan_memory},
      {"keep",
       "how long what ended jobs left is kept, as 7d: their weights, predictions and events; default "
       "forever; `weft broker gc` shows what a time would free",
       parse_keep},
      {"plan_seconds", "how long planning a job may take, in seconds; default 60", parse_plan_seconds},
  };
}

const std::vector<Row>& rows() {
  static const std::vector<Row> kRows = [] {
    std::vector<Row> all = rows_of_broker();
    for (auto* more : {&rows_of_blobs, &rows_of_door})
      for (Row& row : more()) all.push_back(std::move(row));
    return all;
  }();
  return kRows;
}

// What is said under a former name counts under the new one, if that says nothing.
void rename_former(std::map<std::string, std::string>& values) {
  for (const Row& row : rows()) {
    const auto former = row.former.empty() ? values.end() : values.find(row.former);
    if (former == values.end() || former->second.empty()) continue;
    say(stderr, "weft: warning: {} is now called {}\n", option_of(row.former), option_of(row.name));
    std::string& value = values[row.name];
    if (value.empty()) value = former->second;
    values.erase(former);
  }
}

// What the configuration file says and the command line does not.
Status read_config(const std::string& path, std::map<std::string, std::string>& values) {
  WEFT_TRY(const std::string file, storage::read_text(path, configs::kYamlSizeMax));
  WEFT_TRY(const configs::Node tree, configs::parse_yaml(file, path));
  configs::Problems problems;
  configs::MapReader reader(tree, "", problems);
  reader.check_format();
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::map<std::string, std::string> said;
  for (const Row& row : rows()) {
    const std::string text = reader.text(row.name, "");
    if (!text.empty()) said[row.name] = row.is_path ? (folder / text).string() : text;
    if (!row.former.empty()) said[row.former] = reader.text(row.former, "");
  }
  reader.finish();
  if (!problems.empty()) return fail(problems.error());
  rename_former(said);
  for (const auto& [name, text] : said)
    if (std::string& value = values[name]; value.empty()) value = text;
  return {};
}

}  // namespace

void add_broker_options(const CommandLine& command, BrokerWords& words) {
  std::string keys;
  for (const Row& row : rows()) keys += (keys.empty() ? "" : ", ") + row.name;
  command.option("--config", words.config, "a YAML file with " + keys + "; options here win");
  for (const Row& row : rows()) {
    command.option(option_of(row.name), words.values[row.name], row.help);
    if (!row.former.empty())
      command.option(option_of(row.former), words.values[row.former],
                     "the former name of " + option_of(row.name));
  }
}

Status read_broker_options(const BrokerWords& words, BrokerServiceOptions& options) {
  std::map<std::string, std::string> values = words.values;
  rename_former(values);
  if (!words.config.empty()) WEFT_TRY_STATUS(read_config(words.config, values));
  for (const Row& row : rows())
    if (const std::string& text = values[row.name]; !text.empty()) WEFT_TRY_STATUS(row.parse(text, options));
  if (options.http_certificate.empty() != options.http_key.empty())
    return fail(ErrorCode::InvalidArgument, "--http-cert and --http-key belong together: give both");
  if (!options.http && !options.http_key.empty())
    return fail(ErrorCode::InvalidArgument, "--http-cert is for --http: say where to listen");
  return {};
}

}  // namespace weft::cli
