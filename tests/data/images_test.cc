// Photos as samples: their order, their labels, what is kept, and the bits of what the model gets.
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "data/dataset.h"
#include "data/photo.h"
#include "data/photo_list.h"
#include "data/resize.h"
#include "data/summary.h"
#include "tests/data/reading.h"
#include "tests/support/photos.h"
#include "tests/support/scratch.h"

namespace weft::data {
namespace {

namespace fs = std::filesystem;
using test::Scratch;

class Images : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& bytes) {
    const fs::path path = root() / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
  }
  fs::path root() const { return scratch_.folder() / "photos"; }
  ImagesSpec spec(uint32_t size = 8) const {
    ImagesSpec made;
    made.path = root();
    made.size = size;
    return made;
  }
  Scratch scratch_;
};

TEST_F(Images, TheOrderIsThatOfTheNamesWhateverTheDiskSays) {
  std::vector<std::string> names{"cat/10.png", "cat/9.png",     "cat/B.png", "cat/a.png",  "cat-big/1.png",
                                 "dog/1.png",  "dog/sub/0.png", "dog/z.png", "Zebra/1.png"};
  const std::vector<std::string> expected{"Zebra/1.png", "cat/10.png",    "cat/9.png",
                                          "cat/B.png",   "cat/a.png",     "cat-big/1.png",
                                          "dog/1.png",   "dog/sub/0.png", "dog/z.png"};
  for (unsigned seed = 1; seed <= 3; ++seed) {
    fs::remove_all(root());
    std::shuffle(names.begin(), names.end(), std::mt19937(seed));
    for (const std::string& name : names) write(name, test::png(test::picture(4, 4)));
    const auto list = list_photos(spec());
    ASSERT_TRUE(list.has_value()) << list.error().message;
    EXPECT_EQ(list->names, expected);
    EXPECT_EQ(list->labels, (std::vector<int64_t>{0, 1, 1, 1, 1, 2, 3, 3, 3}));
    EXPECT_EQ(list->classes, (std::vector<std::string>{"Zebra", "cat", "cat-big", "dog"}));
  }
}

TEST_F(Images, APixelIsThatOfTheResizedPhotoScaledAndShifted) {
  const test::Picture picture = test::picture(31, 19);
  write("a/1.png", test::png(picture));
  ImagesSpec made = spec(9);
  made.resize = 12;
  made.image.mean = {0.485, 0.456, 0.406};
  made.image.deviation = {0.229, 0.224, 0.225};
  const auto dataset = open_dataset(made);
  ASSERT_TRUE(dataset.has_value()) << dataset.error().message;
  EXPECT_EQ((*dataset)->describe(), "1 samples of image f32[3,9,9], label i64[]");
  std::vector<uint8_t> bytes(3 * 9 * 9);
  resize_photo({31, 19, Orientation::Upright, picture.pixels}, 12, 9, bytes);
  const auto image = read_column(**dataset, "image", {0});
  for (size_t i = 0; i < bytes.size(); ++i)
    ASSERT_EQ(image.as<float>()[i], static_cast<float>((bytes[i] * (1.0 / 255) - made.image.mean[i / 81]) /
                                                       made.image.deviation[i / 81]));
}

TEST_F(Images, WhatIsKeptAndWhatIsDecodedAgainIsTheSame) {
  for (int i = 0; i < 5; ++i)
    write("c" + std::to_string(i % 2) + "/" + std::to_string(i) + ".jpg",
          test::jpeg(test::picture(30, 20, static_cast<uint32_t>(i))));
  ImagesSpec made = spec(16);
  made.image.flip = true;
  made.image.crop = 16;  // kept as 19 by 19
  const auto kept = open_dataset(made), again = open_dataset(made, {.resident_max = 5 * 3 * 19 * 19 - 1});
  ASSERT_TRUE(kept.has_value() && again.has_value());
  EXPECT_EQ((*kept)->resident_bytes(), 5u * 3 * 19 * 19);
  EXPECT_EQ((*again)->resident_bytes(), 0u);
  const std::vector<uint32_t> samples{4, 0, 2, 4};
  std::vector<std::byte> a(4 * 3 * 16 * 16 * 4), b(a.size()), c(a.size());
  ASSERT_TRUE((*kept)->read_drawn(0, samples, {5, 11}, a).has_value());
  fs::remove(root() / "c0/4.jpg");  // kept by now
  ASSERT_TRUE((*kept)->read_drawn(0, samples, {5, 11}, b).has_value());
  EXPECT_EQ(a, b);
  EXPECT_TRUE(fails_with((*again)->read_drawn(0, samples, {5, 11}, c), ErrorCode::NotFound, "c0/4.jpg"));
  write("c0/4.jpg", test::jpeg(test::picture(30, 20, 4)));
  ASSERT_TRUE((*again)->read_drawn(0, samples, {5, 11}, c).has_value());
  EXPECT_EQ(a, c);
}

TEST_F(Images, WithoutLabelsAFolderNeedsNoClasses) {
  write("2.png", test::png(test::picture(4, 4)));
  write("more/1.png", test::png(test::picture(4, 4)));
  ImagesSpec made = spec();
  made.has_labels = false;
  const auto dataset = open_dataset(made);
  ASSERT_TRUE(dataset.has_value()) << dataset.error().message;
  EXPECT_EQ((*dataset)->describe(), "2 samples of image f32[3,8,8]");
}

TEST_F(Images, ASummaryNamesClassesAndWhatCannotBeRead) {
  write("cat/1.png", test::png(test::picture(4, 4)));
  write("dog/1.png", test::png(test::picture(4, 4)));
  write("dog/2.png", "no photo");
  write("dog/readme.txt", "hello");
  const auto guessed = guess_spec(root());
  ASSERT_TRUE(guessed.has_value()) << guessed.error().message;
  EXPECT_EQ(yaml_of(*guessed), "{type: images, path: " + root().string() + ", size: 224}");
  const auto dataset = open_dataset(*guessed);
  const auto summary = summarise(**dataset);
  ASSERT_TRUE(summary.has_value()) << summary.error().message;
  EXPECT_EQ(summary->unreadable_count, 1u);
  EXPECT_NE(summary->unreadable.at(0).find("dog/2.png"), std::string::npos);
  EXPECT_EQ(summary->columns.at(1).classes,
            (std::vector<std::pair<std::string, uint64_t>>{{"cat", 1}, {"dog", 2}}));
  EXPECT_EQ(summary->notes.size(), 1u);
}

TEST_F(Images, ASummaryOfATableCountsWhatIsMissing) {
  const auto path = scratch_.write("t.csv", "a;b;kind\n1;0.5;dog\n3;;cat\n-2;1e400;dog\n");
  const auto guessed = guess_spec(path);
  ASSERT_TRUE(guessed.has_value()) << guessed.error().message;
  EXPECT_EQ(yaml_of(*guessed),
            "{type: csv, path: " + path.string() +
                ", separator: \";\", columns: {x: [a], b: {classes: auto}, kind: {classes: auto}}}");
  const auto finite = scratch_.write("u.csv", "a,kind\n1,dog\nNaN,cat\n-2.5,dog\n");
  const auto table = open_dataset(*guess_spec(finite));
  ASSERT_TRUE(table.has_value()) << table.error().message;
  const auto summary = summarise(**table);
  EXPECT_EQ(summary->columns.at(0).nan, 1u);
  EXPECT_EQ(summary->columns.at(0).low, "-2.5");
  EXPECT_EQ(summary->columns.at(0).first_not_finite, "row 3 (the header is row 1)");
}

}  // namespace
}  // namespace weft::data
