// The data that people bring, as a job file says it; and files of another kind than the job says.
#include <gtest/gtest.h>

#include "configs/job.h"
#include "tests/support/scratch.h"

namespace weft::configs {
namespace {

using test::Scratch;

std::string job_with(const std::string& data, const std::string& model = "model.onnx") {
  return "model: " + model +
         "\ntask: train\ninputs: {x: image}\nloss: {type: cross_entropy, logits: logits, labels: "
         "label}\ndata: " +
         data + "\nbatch_size: 8\nsteps: 5\noptimizer: {type: sgd, learning_rate: 0.1}\n";
}

Result<Job> parse(const std::string& data) {
  return parse_job(job_with(data), {}, {.source = "job.yaml", .folder = "dir", .check_files = false});
}

template <typename Spec>
Spec parsed(const std::string& of_train) {
  const auto job = parse("{train: " + of_train + "}");
  EXPECT_TRUE(job.has_value()) << (job ? "" : job.error().message);
  const Spec* spec = job ? std::get_if<Spec>(&*job->train) : nullptr;
  EXPECT_NE(spec, nullptr);
  return spec != nullptr ? *spec : Spec{};
}

TEST(JobData, ImagesAreRead) {
  const auto spec = parsed<data::ImagesSpec>(
      "{type: images, path: photos, size: 224, mean: [0.5, 0.4, 0.3], deviation: 0.25, augment: [flip, "
      "crop]}");
  EXPECT_EQ(spec.path, "dir/photos");
  EXPECT_EQ(spec.size, 224u);
  EXPECT_EQ(spec.kept(), 256u);
  EXPECT_EQ(spec.image.mean, (std::vector<double>{0.5, 0.4, 0.3}));
  EXPECT_EQ(spec.image.deviation, std::vector<double>{0.25});
  EXPECT_EQ(spec.image.scale, 1.0 / 255);
  EXPECT_TRUE(spec.image.flip);
  EXPECT_EQ(spec.image.crop, 224u);
  EXPECT_TRUE(spec.has_labels);
  EXPECT_EQ(parsed<data::ImagesSpec>("{type: images, path: p, size: 32, resize: 40}").kept(), 32u);
}

TEST(JobData, ArraysAreRead) {
  const auto spec = parsed<data::NpySpec>(
      "{type: npy, arrays: {image: a.npy, label: b.npy, more: c.npy}, columns: {image: {scale: 0.5, augment: "
      "crop, "
      "size: 3}}}");
  EXPECT_EQ(spec.arrays,
            (std::map<std::string, std::filesystem::path>{{"image", "dir/a.npy"}, {"label", "dir/b.npy"}}));
  EXPECT_EQ(spec.transforms.at("image").scale, 0.5);
  EXPECT_EQ(spec.transforms.at("image").crop, 3u);
  EXPECT_TRUE(parsed<data::NpzSpec>("{type: npz, path: a.npz, columns: {image: {augment: flip}}}")
                  .transforms.at("image")
                  .flip);
}

TEST(JobData, TablesAreRead) {
  const auto spec = parsed<data::CsvSpec>(
      "{type: csv, path: t.csv, separator: tab, decimal: \",\", missing: 7, columns: {image: [a, b], label: "
      "{from: "
      "kind, classes: [x, y]}, other: c}}");
  EXPECT_EQ(spec.separator, '\t');
  EXPECT_EQ(spec.decimal, ',');
  ASSERT_EQ(spec.columns.size(), 2u);  // those that the job names
  EXPECT_EQ(spec.columns[0].fields, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(spec.columns[0].is_list);
  EXPECT_EQ(spec.columns[0].missing, 7);
  EXPECT_EQ(spec.columns[1].classes, (std::vector<std::string>{"x", "y"}));
  EXPECT_FALSE(spec.columns[1].missing.has_value());
}

TEST(JobData, DocumentsAreRead) {
  const auto talks = parsed<data::JsonlSpec>(
      "{type: jsonl, path: d.jsonl, tokenizer: t/tokenizer.json, messages: talk, chat_template: llama3, "
      "pack: "
      "across, sequence_length: 32}");
  EXPECT_EQ(talks.path, "dir/d.jsonl");
  EXPECT_EQ(talks.tokenizer, "dir/t/tokenizer.json");
  EXPECT_EQ(talks.form, data::JsonlSpec::Form::Messages);
  EXPECT_EQ(talks.fields, std::vector<std::string>{"talk"});
  EXPECT_EQ(talks.chat_template, "llama3");
  EXPECT_EQ(talks.packing, data::JsonlSpec::Packing::Across);
  EXPECT_EQ(talks.columns, (std::vector<std::string>{"image", "label"}));  // that the job names
  const auto pairs = parsed<data::JsonlSpec>(
      "{type: jsonl, path: d, tokenizer: bytes, prompt: q, completion: a, end: </s>, sequence_length: 8}");
  EXPECT_TRUE(pairs.tokenizer.empty());
  EXPECT_EQ(pairs.form, data::JsonlSpec::Form::Completion);
  EXPECT_EQ(pairs.fields, (std::vector<std::string>{"q", "a"}));
  EXPECT_EQ(pairs.end, "</s>");
  EXPECT_EQ(
      parsed<data::JsonlSpec>(
          "{type: jsonl, path: d, tokenizer: bytes, prompt: [q, more], completion: a, sequence_length: 8}")
          .fields,
      (std::vector<std::string>{"q", "more", "a"}));
}

TEST(JobData, DocumentsAreOfOneForm) {
  const auto refused = [](const std::string& more) {
    const auto job =
        parse("{train: {type: jsonl, path: d, tokenizer: bytes, sequence_length: 8" + more + "}}");
    return job ? std::string() : job.error().message;
  };
  constexpr std::string_view kForms = "needs either `text`, or `prompt` and `completion`, or `messages`";
  for (const char* more : {"", ", text: a, messages: b", ", prompt: a", ", completion: a, text: b"})
    EXPECT_NE(refused(more).find(kForms), std::string::npos) << more;
  EXPECT_NE(refused(", text: a, chat_template: plain").find("goes with `messages`"), std::string::npos);
  EXPECT_NE(refused(", messages: a, chat_template: alpaca").find("there are chatml"), std::string::npos);
  EXPECT_NE(refused(", messages: a, end: x").find("has no meaning with `messages`"), std::string::npos);
  EXPECT_NE(refused(", text: a, pack: all").find("pack"), std::string::npos);
}

TEST(JobData, APartOfTheDocumentsIsKeptFromTraining) {
  const std::string train =
      "train: {type: jsonl, path: d, tokenizer: bytes, text: a, sequence_length: 8, validation: 0.5}";
  const auto job = parse("{" + train + "}");
  ASSERT_TRUE(job.has_value()) << job.error().message;
  ASSERT_TRUE(job->test.has_value());
  EXPECT_EQ(std::get<data::JsonlSpec>(*job->test).part, data::TextSpec::Part::Validation);
  EXPECT_FALSE(parse("{" + train + ", test: {type: npz, path: t.npz}}").has_value());
}

TEST(JobData, ATestSetHasTheClassesOfTheTrainingSet) {
  const auto job = parse("{train: {type: images, path: a, size: 8}, test: {type: images, path: b, size: 8}}");
  ASSERT_TRUE(job.has_value()) << job.error().message;
  const auto& test = std::get<data::ImagesSpec>(*job->test);
  ASSERT_NE(test.classes_of, nullptr);
  EXPECT_EQ(test.classes_of->path, "dir/a");
}

TEST(JobData, WhatMakesNoSenseIsRefusedWithItsPlace) {
  const struct {
    std::string_view train, part;
  } kCases[] = {
      {"{type: images, path: p}", "`data.train.size` is missing"},
      {"{type: images, path: p, size: 5000}", "`data.train.size` must be a whole number from 1 to 4096"},
      {"{type: images, path: p, size: 8, resize: 4}", "`data.train.resize` is less than `size`"},
      {"{type: images, path: p, size: 8, augment: turn}", "`data.train.augment` cannot be 'turn'"},
      {"{type: images, path: p, size: 8, mean: [1, 2]}", "are one number, or three"},
      {"{type: images, path: p, size: 8, deviation: 0}", "must be above 0"},
      {"{type: npz, path: p, columns: {image: {augment: crop}}}",
       "`data.train.columns.image.size` is missing"},
      {"{type: npz, path: p, columns: {image: {size: 8}}}", "goes with `augment: crop`"},
      {"{type: npz, path: p, columns: {image: {scal: 8}}}", "did you mean"},
      {"{type: npy}", "`data.train.arrays` is missing"},
      {"{type: npy, arrays: [a.npy]}", "`data.train.arrays` must be a map of columns, as {image: images.npy"},
      {"{type: csv, path: p}", "`data.train.columns` is missing"},
      {"{type: csv, path: p, columns: {image: []}}", "must be a list of 1 to"},
      {"{type: csv, path: p, columns: {image: {classes: [a, a]}}}", "names a class twice"},
      {"{type: csv, path: p, columns: {image: {classes: yes}}}", "must be auto, or a list of texts"},
      {"{type: csv, path: p, columns: {image: a}, separator: x}", "must be one of ',', ';', 'tab', '|'"},
      {"{type: parquet, path: t.parquet}", "parquet is not read; convert it: python3 -c \"import pandas;"},
      {"{type: tar, path: t.tar}", "tar is not read; unpack it (tar -xf t.tar)"},
      {"{type: pt, path: x.pt}", "torch.load('x.pt')"},
  };
  for (const auto& [train, part] : kCases) {
    const auto job = parse("{train: " + std::string(train) + "}");
    ASSERT_FALSE(job.has_value()) << train;
    EXPECT_NE(job.error().message.find(part), std::string::npos) << train << "\n" << job.error().message;
    EXPECT_TRUE(job.error().message.starts_with("job.yaml:5:")) << job.error().message;
  }
}

// ---- files of another kind (docs/DATA.md)

class OtherKinds : public ::testing::Test {
 protected:
  void SetUp() override {
    scratch_.write("model.onnx", "\x08\x07\x12\x07pytorch");
    scratch_.write("t.csv", "a,b\n1,2\n");
    scratch_.write("x.npy", "\x93NUMPY\x01");
    scratch_.write("t.parquet", "PAR1");
    scratch_.write("m.pt", "\x80\x02}q");
    scratch_.write("other.yaml", "model: m.onnx\ntask: train\n");
    std::filesystem::create_directory(scratch_.folder() / "photos");
  }
  std::string told(const std::string& text) const {
    const auto job = parse_job(text, {}, {.source = "job.yaml", .folder = scratch_.folder()});
    return job ? "nothing" : job.error().message;
  }
  std::string told_of(const std::string& train) const { return told(job_with("{train: " + train + "}")); }
  Scratch scratch_;
};

TEST_F(OtherKinds, DataOfAnotherTypeAreToldWithTheLineThatReadsThem) {
  const struct {
    std::string_view train, part, line;
  } kCases[] = {
      {"{type: npz, path: t.csv}", "is a table (CSV), and `type: npz` does not read it",
       "{type: csv, path: "},
      {"{type: npz, path: x.npy}", "is an array (.npy)", "{type: npy, arrays: {x: "},
      {"{type: npz, path: photos}", "is not a file; name a file, not a folder", "{type: images, path: "},
      {"{type: npz, path: m.pt}", "is a file of PyTorch", "torch.load("},
      {"{type: csv, path: t.parquet, columns: {image: a}}", "is a table (Parquet)", "pandas.read_parquet("},
      {"{type: npy, arrays: {image: t.csv}}", "is a table (CSV)", "{type: csv, path: "},
      {"{type: idx, images: t.csv, labels: x.npy}", "is a table (CSV)", "{type: npy, arrays: "},
  };
  for (const auto& [train, part, line] : kCases) {
    const std::string message = told_of(std::string(train));
    EXPECT_NE(message.find(part), std::string::npos) << train << "\n" << message;
    EXPECT_NE(message.find(line), std::string::npos) << train << "\n" << message;
  }
}

TEST_F(OtherKinds, AModelThatIsNoneIsToldWhatItIs) {
  const auto of_model = [&](const std::string& model) {
    return told(job_with("{train: {type: csv, path: t.csv, columns: {image: a, label: b}}}", model));
  };
  EXPECT_EQ(of_model("model.onnx"), "nothing");
  EXPECT_NE(
      of_model("other.yaml").find("is a job file (YAML), not an ONNX model; a job file names its model"),
      std::string::npos);
  EXPECT_NE(
      of_model("m.pt").find("not an ONNX model; write the model as ONNX, in Python: torch.onnx.export("),
      std::string::npos);
  EXPECT_NE(of_model("t.csv").find("is a table (CSV), not an ONNX model"), std::string::npos);
}

TEST_F(OtherKinds, AFileThatIsNoJobIsToldWhatItIsAndWhatToWrite) {
  const auto of_job = [&](const char* name) {
    const auto job = load_job(scratch_.folder() / name);
    return job ? "nothing" : job.error().message;
  };
  EXPECT_NE(of_job("model.onnx").find("is an ONNX model, not a job file; write one, as job.yaml:\n  model: "),
            std::string::npos);
  EXPECT_NE(of_job("t.csv").find("{type: csv, path: "), std::string::npos);
  EXPECT_NE(of_job("photos").find("is a folder, not a job file"), std::string::npos);
}

}  // namespace
}  // namespace weft::configs
