// A job that has travelled is the same job: packed, put together in another folder, and parsed there.
#include "train/submission.h"

#include <gtest/gtest.h>

#include <fstream>

#include "data/dataset.h"
#include "storage/blob_store.h"
#include "storage/sha256.h"
#include "tests/support/photos.h"
#include "tests/support/scratch.h"
#include "tests/train/reference_files.h"
#include "train/outer_record.h"

namespace weft {
namespace {
namespace fs = std::filesystem;

class Submission : public testing::Test {
 protected:
  fs::path unpack_case(const std::string& name) {
    fs::create_directories(scratch_.folder() / name);
    return test::unpack_case(name, scratch_.folder() / name);
  }
  train::OpenedJob open(const fs::path& file, const std::vector<std::string>& sets = {}) {
    auto opened = train::open_job(file, sets);
    EXPECT_TRUE(opened.has_value()) << (opened ? "" : opened.error().message);
    return opened.value_or(train::OpenedJob{});
  }
  train::Submission pack(const train::OpenedJob& opened) {
    auto ready = train::ready_job(opened);
    EXPECT_TRUE(ready.has_value()) << (ready ? "" : ready.error().message);
    return ready ? std::move(ready->submission) : train::Submission{};
  }
  // What a broker does: blobs into a store, files out of pieces, the job file parsed beside them.
  configs::Job arrive(const train::Submission& submission) {
    const fs::path folder = scratch_.folder() / "arrived";
    auto store = storage::BlobStore::open(scratch_.folder() / "blobs");
    EXPECT_TRUE(store.has_value());
    for (const auto& [sha256, source] : submission.blobs) {
      std::vector<std::byte> bytes;
      EXPECT_TRUE(storage::read_source(source, [&](std::span<const std::byte> piece) -> Status {
                    bytes.insert(bytes.end(), piece.begin(), piece.end());
                    return {};
                  }).has_value());
      EXPECT_EQ((*store)->put(bytes).value(), sha256);
    }
    for (const auto& file : submission.files) {
      const auto status = storage::unpack(file.pieces, **store, folder / file.path);
      EXPECT_TRUE(status.has_value()) << status.error().message;
    }
    auto job = configs::parse_job(submission.job, {}, {.source = submission.name, .folder = folder});
    EXPECT_TRUE(job.has_value()) << (job ? "" : job.error().message) << "\n" << submission.job;
    return job.value_or(configs::Job{});
  }
  void expect_same_bytes(const fs::path& a, const fs::path& b) {
    EXPECT_EQ(storage::sha256_of_file(a).value(), storage::sha256_of_file(b).value()) << a << " and " << b;
  }
  void expect_same_values(const configs::Job& a, const configs::Job& b) {
    EXPECT_EQ(a.task, b.task);
    EXPECT_EQ(a.inputs, b.inputs);
    ASSERT_EQ(a.losses.size(), b.losses.size());
    for (size_t i = 0; i < a.losses.size(); ++i) {
      EXPECT_EQ(a.losses[i].type, b.losses[i].type);
      EXPECT_EQ(a.losses[i].prediction, b.losses[i].prediction);
      EXPECT_EQ(a.losses[i].target, b.losses[i].target);
      EXPECT_EQ(a.losses[i].ignore_index, b.losses[i].ignore_index);
      EXPECT_EQ(a.losses[i].weight, b.losses[i].weight);
    }
    EXPECT_EQ(a.batch_size, b.batch_size);
    EXPECT_EQ(a.microbatch_size, b.microbatch_size);
    EXPECT_EQ(a.steps, b.steps);
    EXPECT_EQ(a.epochs, b.epochs);
    EXPECT_EQ(a.shuffle, b.shuffle);
    EXPECT_EQ(a.seed, b.seed);
    EXPECT_EQ(a.freeze, b.freeze);
    EXPECT_EQ(a.optimizer.type, b.optimizer.type);
    EXPECT_EQ(a.optimizer.learning_rate, b.optimizer.learning_rate);
    EXPECT_EQ(a.optimizer.weight_decay, b.optimizer.weight_decay);
    EXPECT_EQ(a.optimizer.momentum, b.optimizer.momentum);
    EXPECT_EQ(a.optimizer.nesterov, b.optimizer.nesterov);
    EXPECT_EQ(a.optimizer.beta2, b.optimizer.beta2);
    EXPECT_EQ(a.optimizer.slots, b.optimizer.slots);
    EXPECT_EQ(a.schedule.type, b.schedule.type);
    EXPECT_EQ(a.schedule.warmup_steps, b.schedule.warmup_steps);
    EXPECT_EQ(a.schedule.final_fraction, b.schedule.final_fraction);
    EXPECT_EQ(a.clip_norm, b.clip_norm);
    EXPECT_EQ(a.evaluate_every, b.evaluate_every);
    EXPECT_EQ(a.checkpoint.every, b.checkpoint.every);
    EXPECT_EQ(a.checkpoint.steps, b.checkpoint.steps);
    EXPECT_EQ(a.placement.stages, b.placement.stages);
    EXPECT_EQ(a.train.has_value(), b.train.has_value());
    EXPECT_EQ(a.test.has_value(), b.test.has_value());
    EXPECT_EQ(a.predict.has_value(), b.predict.has_value());
  }

  test::Scratch scratch_;
};

TEST_F(Submission, AnNpzJobArrivesAsItWas) {
  const auto opened = open(unpack_case("resnet_small"), {"placement.stages=3"});
  const auto submission = pack(opened);
  EXPECT_EQ(submission.name, "resnet_small") << "all are called job.yaml";
  EXPECT_EQ(submission.stages, 3u);
  ASSERT_GE(submission.files.size(), 2u);
  EXPECT_EQ(submission.files[0].path, "model/model.onnx");
  const configs::Job job = arrive(submission);
  expect_same_values(opened.job, job);
  expect_same_bytes(opened.job.model, job.model);
  expect_same_bytes(std::get<data::NpzSpec>(*opened.job.train).path,
                    std::get<data::NpzSpec>(*job.train).path);
}

TEST_F(Submission, AnExampleWithTextArrivesAsItWas) {
  const fs::path source = fs::path(WEFT_SOURCE_DIR) / "examples/gpt";
  scratch_.write("corpus.txt", std::string(4000, 'a') + "the end");
  const auto opened = open(source / "job.yaml",
                           {"data.train.path=" + (scratch_.folder() / "corpus.txt").string(), "steps=7"});
  const configs::Job job = arrive(pack(opened));
  expect_same_values(opened.job, job);
  EXPECT_EQ(job.steps, 7u);
  const auto& text = std::get<data::TextSpec>(*job.train);
  EXPECT_EQ(text.sequence_length, 128);
  EXPECT_EQ(text.validation, 0.1);
  EXPECT_EQ(std::get<data::TextSpec>(*job.test).part, data::TextSpec::Part::Validation);
  expect_same_bytes(scratch_.folder() / "corpus.txt", text.path);
  expect_same_bytes(source / "model.onnx", job.model);
}

// Photos become an npz on their way, and what chance makes of them stays the same.
TEST_F(Submission, PhotosArriveAsAnNpzThatReadsTheSame) {
  const fs::path photos = scratch_.folder() / "photos";
  for (uint32_t i = 0; i < 7; ++i) {
    fs::create_directories(photos / (i % 2 == 0 ? "cat" : "dog"));
    std::ofstream(photos / (i % 2 == 0 ? "cat" : "dog") / (std::to_string(i) + ".jpg"), std::ios::binary)
        << test::jpeg(test::picture(20 + i, 30, i));
  }
  const auto opened =
      open(unpack_case("resnet_small"),
           {"data.train={type: images, path: " + photos.string() +
                ", size: 16, augment: [flip, crop], mean: [0.485, 0.456, 0.406], deviation: 0.225}",
            "data.test=null", "evaluate_every=0", "batch_size=4", "microbatch_size=4"});
  const auto submission = pack(opened);
  for (const auto& file : submission.files) EXPECT_FALSE(file.path.ends_with(".jpg")) << file.path;
  const configs::Job job = arrive(submission);
  expect_same_values(opened.job, job);
  const auto here = data::open_dataset(*opened.job.train);
  const auto there = data::open_dataset(*job.train);
  ASSERT_TRUE(here.has_value() && there.has_value()) << submission.job;
  EXPECT_EQ((*here)->describe(), (*there)->describe());
  const std::vector<uint32_t> samples{3, 0, 6, 2, 1, 5, 4};
  for (size_t column = 0; column < 2; ++column)
    for (uint64_t epoch = 0; epoch < 5; ++epoch) {
      const auto size = static_cast<size_t>((*here)->columns()[column].sample.bytes().value) * samples.size();
      std::vector<std::byte> a(size), b(size);
      ASSERT_TRUE((*here)->read_drawn(column, samples, {11, epoch * 7}, a).has_value());
      ASSERT_TRUE((*there)->read_drawn(column, samples, {11, epoch * 7}, b).has_value());
      EXPECT_EQ(a, b);
    }
}

TEST_F(Submission, APhotoThatCannotBeReadIsToldBeforeAnythingTravels) {
  const fs::path cat = scratch_.folder() / "photos/cat";
  fs::create_directories(cat);
  scratch_.write("photos/cat/1.png", test::png(test::picture(20, 20)));
  scratch_.write("photos/cat/2.png", "no photo");
  const std::vector<std::string> sets{
      "data.train={type: images, path: " + (scratch_.folder() / "photos").string() + ", size: 16}",
      "data.test=null", "evaluate_every=0", "batch_size=2", "microbatch_size=2"};
  const fs::path file = unpack_case("resnet_small");
  for (const auto& error :
       {train::ready_job(open(file, sets)).error(), train::check_job(open(file, sets).job).error()})
    EXPECT_NE(error.message.find("cat/2.png: row 1 (the first is 0): is no JPEG"), std::string::npos)
        << error.message;
}

// A header of idx and `count` zero bytes.
std::string idx(std::initializer_list<uint8_t> dims, size_t count) {
  std::string bytes{'\0', '\0', '\x08', static_cast<char>(dims.size())};
  for (const uint8_t dim : dims) bytes += std::string(3, '\0') + static_cast<char>(dim);
  return bytes + std::string(count, '\0');
}

TEST_F(Submission, EqualFileNamesFromDifferentFoldersStayApart) {
  const fs::path source = fs::path(WEFT_SOURCE_DIR) / "examples/fashion-mnist";
  for (const char* folder : {"images", "labels"}) fs::create_directories(scratch_.folder() / folder);
  scratch_.write("images/train.idx", idx({2, 28, 28}, 2 * 28 * 28));
  scratch_.write("labels/train.idx", idx({2}, 2));
  const std::string folder = scratch_.folder().string();
  const auto opened = open(source / "job.yaml", {"data.train.images=" + folder + "/images/train.idx",
                                                 "data.train.labels=" + folder + "/labels/train.idx",
                                                 "data.test=null", "evaluate_every=0", "batch_size=2"});
  const configs::Job job = arrive(pack(opened));
  expect_same_values(opened.job, job);
  const auto& spec = std::get<data::IdxSpec>(*job.train);
  EXPECT_EQ(spec.mean, 0.286);
  EXPECT_EQ(spec.deviation, 0.353);
  expect_same_bytes(scratch_.folder() / "images/train.idx", spec.images);
  expect_same_bytes(scratch_.folder() / "labels/train.idx", spec.labels);
}

TEST_F(Submission, StepsOfTheCommandLineWinOverEpochsOfTheFile) {
  const fs::path source = fs::path(WEFT_SOURCE_DIR) / "examples/fashion-mnist";
  scratch_.write("images.idx", idx({2, 28, 28}, 2 * 28 * 28));
  scratch_.write("labels.idx", idx({2}, 2));
  const std::string folder = scratch_.folder().string();
  const auto opened = open(source / "job.yaml", {"data.train.images=" + folder + "/images.idx",
                                                 "data.train.labels=" + folder + "/labels.idx",
                                                 "data.test=null", "evaluate_every=0", "steps=5"});
  const configs::Job job = arrive(pack(opened));
  EXPECT_EQ(job.steps, 5u);
  EXPECT_FALSE(job.epochs.has_value());
}

TEST_F(Submission, TheOutputIsNotPartOfWhatTravels) {
  const auto opened =
      open(unpack_case("gpt3"), {"output=" + (scratch_.folder() / "secret-name.onnx").string()});
  EXPECT_EQ(pack(opened).job.find("secret-name"), std::string::npos);
  EXPECT_EQ(pack(opened).job.find(scratch_.folder().string()), std::string::npos)
      << "no path of this machine travels";
}

// Whoever fetches the result, elsewhere and later, has no other word of the job.
TEST_F(Submission, WhichRunARecordOfRoundsIsOfTravelsWithTheModelOfLocalSteps) {
  const auto file = unpack_case("gpt3");
  const auto travelling = [&](const train::OpenedJob& opened) {
    std::string text;
    for (const auto& travels : pack(opened).files)
      if (travels.path == train::kTravellingRecord)
        for (const auto& piece : travels.pieces)
          text.append(reinterpret_cast<const char*>(piece.bytes.data()), piece.bytes.size());
    return text;
  };
  EXPECT_EQ(travelling(open(file)), "");
  const std::vector<std::string> grows{"replicas=auto", "sync={every: 5, shares: auto}", "seed=7"};
  for (const auto& sets : {std::vector<std::string>{"replicas=3", "sync={every: 5}"}, grows}) {
    const auto opened = open(file, sets);
    const replicas::LocalSteps plan{.terms = opened.job.replicas, .steps = 40};
    auto record = storage::parse_outer_record(travelling(opened), "what travels");
    ASSERT_TRUE(record.has_value()) << record.error().message;
    record->rounds = replicas::rounds_of({{plan}}, 30);
    EXPECT_EQ(storage::to_text(*record), storage::to_text(train::record_of(opened.job, {{plan}}, 30)));
  }
}

TEST_F(Submission, ChecksFindWhatTrainingWouldFind) {
  const auto file = unpack_case("gpt3");
  const auto checked = train::check_job(open(file).job);
  ASSERT_TRUE(checked.has_value()) << checked.error().message;
  EXPECT_GT(checked->parameter_tensors, 10u);
  EXPECT_GT(checked->steps, 0u);
  const auto open_size = train::check_job(open(file, {"microbatch_size=auto"}).job);
  ASSERT_TRUE(open_size.has_value()) << open_size.error().message;
  EXPECT_EQ(open_size->parameter_tensors, checked->parameter_tensors);
  const auto wrong = train::check_job(open(file, {"inputs={tokens: nothing}"}).job);
  ASSERT_FALSE(wrong.has_value());
  EXPECT_NE(wrong.error().message.find("nothing"), std::string::npos) << wrong.error().message;
}

TEST(SubmissionYaml, ReadsBackAsTheSameTree) {
  const std::string text =
      "a: 1e-3\nb: {\"x y\": [true, \"true\", 'it''s', null], 'k:': \"line\\nbreak \\\\ \\x01\"}\nc: -.5\nd: "
      "\"007\"\n"
      "e: /some/path with spaces\nf: \"*.cos\"\ng: 60s\nh: \xC3\xA9\n";
  const auto first = configs::parse_yaml(text, "first");
  ASSERT_TRUE(first.has_value()) << first.error().message;
  const auto second = configs::parse_yaml(train::to_yaml(*first), "second");
  ASSERT_TRUE(second.has_value()) << second.error().message << "\n" << train::to_yaml(*first);
  const std::function<void(const configs::Node&, const configs::Node&)> compare = [&](const auto& a,
                                                                                      const auto& b) {
    EXPECT_EQ(a.kind, b.kind);
    EXPECT_EQ(a.text, b.text);
    if (a.quoted) {
      EXPECT_TRUE(b.quoted) << a.text;
    }
    ASSERT_EQ(a.items.size(), b.items.size());
    for (size_t i = 0; i < a.items.size(); ++i) compare(a.items[i], b.items[i]);
    ASSERT_EQ(a.entries.size(), b.entries.size());
    for (size_t i = 0; i < a.entries.size(); ++i) {
      EXPECT_EQ(a.entries[i].key, b.entries[i].key);
      compare(a.entries[i].value, b.entries[i].value);
    }
  };
  compare(*first, *second);
  EXPECT_FALSE(second->find("a")->value.quoted) << "a number stays a number";
}

}  // namespace
}  // namespace weft
