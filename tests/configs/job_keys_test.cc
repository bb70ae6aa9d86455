// The page about the job file says what the reader does: each key has a row, each row a key, every example
// parses, no choice asks for more, and a default that is written down changes nothing.
#include "configs/job_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <ostream>
#include <set>
#include <sstream>
#include <variant>

#include "configs/job.h"

namespace weft::configs {
namespace {

std::vector<JobKey> all_keys() {
  std::vector<JobKey> keys;
  for (const JobKeySection& section : job_key_sections())
    keys.insert(keys.end(), section.keys.begin(), section.keys.end());
  return keys;
}

Result<Job> parse_example(const JobKey& key, const std::vector<std::string>& sets = {}) {
  return parse_job(example_job(key), sets, {.source = "example", .folder = {}, .check_files = false});
}

AskedKeys asked() {
  auto result = asked_by_examples();
  EXPECT_TRUE(result.has_value()) << result.error().message;
  return result.value_or(AskedKeys{});
}

TEST(JobKeys, EachKeyOfTheReaderHasOneRowAndEachRowAKey) {
  std::set<std::string> rows;
  for (const JobKey& key : all_keys())
    EXPECT_TRUE(rows.emplace(key.path).second) << key.path << " stands twice";
  const AskedKeys all = asked();
  for (const auto& [path, takes] : all.takes) EXPECT_TRUE(rows.contains(path)) << path << " has no row";
  for (const std::string& row : rows)
    EXPECT_TRUE(all.takes.contains(row)) << row << " is no key of the reader";
}

TEST(JobKeys, EachExampleParsesAndHasItsKey) {
  for (const JobKey& key : all_keys()) {
    SCOPED_TRACE(key.path);
    const auto job = parse_example(key);
    ASSERT_TRUE(job.has_value()) << job.error().message << "\n" << example_job(key);
    // Locations name the items of lists by number.
    const bool has_it = std::any_of(job->locations.begin(), job->locations.end(), [&](const auto& entry) {
      std::string path = entry.first;
      for (size_t at = 0; (at = path.find("[0]", at)) != std::string::npos; ++at) path.erase(at + 1, 1);
      return job_key_of(path) == key.path;
    });
    EXPECT_TRUE(has_it) << key.example;
  }
}

// The concrete path in its example of a key that lies in maps alone; empty: it lies in a list, or under a
// name.
std::string path_to_set(const JobKey& key) {
  std::string path(key.path);
  if (path.find("[]") != std::string::npos || path.find("INPUT") != std::string::npos ||
      path.find("COLUMN") != std::string::npos)
    return "";
  if (path.starts_with("data.SET.")) path.replace(5, 3, key.task == Task::Predict ? "predict" : "train");
  return path;
}

std::vector<std::string> choices_of(const std::string& takes) {
  std::vector<std::string> names;
  if (!takes.starts_with("one of")) return names;
  std::istringstream words(takes.substr(7));
  for (std::string name; std::getline(words, name, ' ');) {
    std::erase_if(name, [](char c) { return c == '`' || c == ','; });
    names.push_back(name);
  }
  return names;
}

std::string takes_of(const AskedKeys& asked, const JobKey& key) {
  const auto found = asked.takes.find(key.path);
  return found == asked.takes.end() ? "" : found->second;
}

// Whatever is chosen, the reader asks for keys that have a row; so a branch with keys of its own is not left
// out.
TEST(JobKeys, NoChoiceAsksForAKeyWithoutARow) {
  std::set<std::string> rows;
  for (const JobKey& key : all_keys()) rows.emplace(key.path);
  const AskedKeys all = asked();
  size_t choices = 0;
  for (const JobKey& key : all_keys()) {
    if (path_to_set(key).empty()) continue;
    for (const std::string& name : choices_of(takes_of(all, key))) {
      AskedKeys here;
      const std::vector<std::string> sets = {path_to_set(key) + "=" + name};
      (void)parse_job(example_job(key), sets, here);  // what else it needs is not there
      EXPECT_FALSE(here.takes.empty());
      for (const auto& [path, takes] : here.takes)
        EXPECT_TRUE(rows.contains(job_key_of(path))) << path << ", where " << sets[0];
      ++choices;
    }
  }
  EXPECT_GT(choices, 30u);
}

void describe(std::ostream& out, const std::optional<data::DataSpec>& spec) {
  if (!spec) return;
  if (const auto* idx = std::get_if<data::IdxSpec>(&*spec))
    out << idx->images << idx->labels << idx->scale << ' ' << idx->mean << ' ' << idx->deviation;
  if (const auto* npz = std::get_if<data::NpzSpec>(&*spec)) out << npz->path << npz->columns.size();
  if (const auto* text = std::get_if<data::TextSpec>(&*spec))
    out << text->path << text->sequence_length << ' ' << text->validation << static_cast<int>(text->part)
        << text->token_bytes;
  if (const auto* csv = std::get_if<data::CsvSpec>(&*spec))
    out << csv->path << csv->separator << csv->decimal << csv->columns.size() << csv->transforms.size();
  if (const auto* npy = std::get_if<data::NpySpec>(&*spec))
    for (const auto& [column, path] : npy->arrays) out << column << path;
  if (const auto* images = std::get_if<data::ImagesSpec>(&*spec))
    out << images->path << images->size << ' ' << images->kept() << images->image.flip << images->has_classes;
  out << '\n';
}

void describe(std::ostream& out, const dag::LossSpec& loss) {
  out << static_cast<int>(loss.type) << loss.prediction << ' ' << loss.target << ' ' << loss.axis.value_or(99)
      << ' ' << loss.ignore_index.value_or(99) << ' ' << loss.weight << ' ' << loss.class_weights.size()
      << ' ' << loss.label_smoothing << loss.sample_weights << '\n';
}

void describe(std::ostream& out, const dag::OptimizerSpec& rule) {
  out << static_cast<int>(rule.type) << ' ' << rule.learning_rate << ' ' << rule.weight_decay << ' '
      << rule.momentum << ' ' << rule.dampening << rule.nesterov << ' ' << rule.beta1 << ' ' << rule.beta2
      << ' ' << rule.epsilon << ' ' << static_cast<int>(rule.slots) << ' ' << rule.groups.size() << '\n';
}

// All of a job that a default can be of.
std::string described(const Job& job) {
  std::ostringstream out;
  for (const auto* data : {&job.train, &job.test, &job.predict}) describe(out, *data);
  for (const dag::LossSpec& loss : job.losses) describe(out, loss);
  describe(out, job.optimizer);
  if (job.serve)
    out << job.serve->name << job.serve->tokenizer << job.serve->chat_template << job.serve->context << ' '
        << job.serve->sequences_max << ' ' << job.serve->rows_max << static_cast<int>(job.serve->objective)
        << static_cast<int>(job.serve->draft.kind) << job.serve->draft.file;
  if (job.init) out << job.init->file << job.init->partial << job.init->rename.size();
  out << job.model << job.output << job.batch_size << ' ' << job.microbatch_size << ' ' << job.shuffle
      << job.seed << ' ' << job.trained.size() << job.freeze.size() << static_cast<int>(job.schedule.type)
      << job.schedule.warmup_steps << ' ' << job.schedule.final_fraction << ' ' << job.clip_norm
      << static_cast<int>(job.on_divergence) << job.gradient_ranges << ' ' << job.replicas.count << ' '
      << job.replicas.every << job.replicas.settle_every << compress::name(job.replicas.codec)
      << static_cast<int>(job.replicas.outer.type) << job.replicas.outer.learning_rate << ' '
      << job.replicas.outer.momentum << ' ' << job.evaluate_every << ' ' << job.placement.stages.value_or(0)
      << static_cast<int>(job.placement.equal_bits) << job.placement.strategy << job.placement.exclude.size()
      << job.placement.pins.size() << job.placement.owner_share_max << ' '
      << static_cast<int>(job.compression.policy) << job.compression.codec.has_value() << ' '
      << job.compression.ratio << ' ' << static_cast<int>(job.compression.values)
      << static_cast<int>(job.arithmetic);
  return out.str();
}

TEST(JobKeys, TheDefaultThatIsWrittenDownIsThatOfTheReader) {
  size_t compared = 0;
  for (const JobKey& key : all_keys()) {
    const std::string path = path_to_set(key);
    if (key.otherwise.empty() || path.empty()) continue;
    SCOPED_TRACE(key.path);
    auto with = parse_example(key, {path + "=" + std::string(key.otherwise)});
    auto without = parse_example(key, {path + "=null"});
    if (path.starts_with("placement.")) {  // which has to say something
      with = parse_example(key, {path + "=" + std::string(key.otherwise), "placement.stages=2"});
      without = parse_example(key, {path + "=null", "placement.stages=2"});
    }
    ASSERT_TRUE(with.has_value()) << with.error().message;
    ASSERT_TRUE(without.has_value()) << without.error().message;
    EXPECT_EQ(described(*with), described(*without));
    ++compared;
  }
  EXPECT_GT(compared, 20u);
}

TEST(JobKeys, ARequiredKeyIsMissedWhereItIsNotThere) {
  size_t missed = 0;
  for (const JobKey& key : all_keys()) {
    const std::string path = path_to_set(key);
    if (!key.otherwise.empty() || !key.otherwise_words.empty() || path.empty()) continue;
    SCOPED_TRACE(key.path);
    const auto job = parse_example(key, {path + "=null"});
    ASSERT_FALSE(job.has_value());
    EXPECT_NE(job.error().message.find("`" + path + "` is missing"), std::string::npos)
        << job.error().message;
    ++missed;
  }
  EXPECT_GT(missed, 10u);
}

}  // namespace
}  // namespace weft::configs
