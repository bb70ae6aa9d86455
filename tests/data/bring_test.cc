// What people bring: each row of the tables of docs/DATA.md, with a file that is so.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "data/dataset.h"
#include "data/npz_writer.h"
#include "tests/data/reading.h"
#include "tests/support/photos.h"
#include "tests/support/scratch.h"

namespace weft::data {
namespace {

namespace fs = std::filesystem;
using test::PngKind;
using test::Scratch;

struct Row {
  std::string_view what;                // the first cell
  std::vector<std::string_view> parts;  // of the message; none: it is taken
  std::function<DataSpec(const Scratch&)> data;
};

// ---- tables

using TableColumn = CsvSpec::Column;
const TableColumn kA{.name = "a", .fields = {"a"}};
const TableColumn kKind{.name = "kind", .fields = {"kind"}, .has_classes = true};

Row table(std::string_view what, std::vector<std::string_view> parts, std::string text,
          std::vector<TableColumn> columns = {kA}, char separator = ',', char decimal = '.') {
  return {what, std::move(parts), [=](const Scratch& scratch) {
            CsvSpec spec;
            spec.path = scratch.write("t.csv", text);
            spec.columns = columns;
            spec.separator = separator;
            spec.decimal = decimal;
            return DataSpec(spec);
          }};
}

std::vector<Row> table_rows() {
  TableColumn filled = kA;
  filled.missing = 0;
  return {
      table("a row of another width than the header", {"t.csv: row 3: has 3 fields, and the header 2"},
            "a,b\n1,2\n1,2,3\n"),
      table("quotes around separators, line ends and doubled quotes", {},
            "a,\"b,\"\"\n\"\n\"1\",\"x,\n\"\"y\"\n"),
      table("a quote within a field that does not begin with one", {}, "a,kind\n1,5\" pipe\n", {kA, kKind}),
      table("a quote that is not closed", {"t.csv: row 2: a quote is not closed"}, "a\n\"1\n2\n"),
      table("something behind a closing quote", {"t.csv: row 2: something follows a quoted field"},
            "a\n\"1\"2\n"),
      table("a byte order mark of UTF-8", {}, "\xEF\xBB\xBF\x61,b\n1,2\n"),
      table("UTF-16", {"t.csv: is UTF-16; convert it: iconv -f UTF-16"},
            std::string("\xFF\xFE\x61\0\n\0", 6)),
      table("zero bytes", {"t.csv: row 2: has a zero byte"}, std::string("a\n1\0\n", 5)),
      table("lines that end in CRLF or CR", {}, "a\r\n1\r2\r\n"),
      table("empty lines", {}, "\na\n\n1\n\n"),
      table("blanks around a field", {}, " a , b\n 1 ,\t2\n"),
      table("a decimal comma", {"t.csv: row 2: column 'a' holds '1,5'", "say `decimal: \",\"`"},
            "a\n\"1,5\"\n"),
      table("a decimal comma with `decimal: \",\"`", {}, "a;b\n1,5;-2,25e3\n", {kA}, ';', ','),
      table("semicolons between the fields", {"has no column 'a'", "say `separator: \";\"`"}, "a;b\n1;2\n"),
      table("semicolons with `separator: \";\"`", {}, "a;b\n1;2\n", {kA}, ';'),
      table("no header",
            {"t.csv: row 1: the header has no column 'a'; it has '1.5', '2'", "is the header missing?"},
            "1.5,2\n1,2\n"),
      table("a header that has a name twice", {"t.csv: row 1: the header names 'a' twice"}, "a,b,a\n1,2,3\n"),
      table("a header that comes again", {"t.csv: row 3: column 'a' holds 'a'", "is the header there twice?"},
            "a\n1\na\n2\n"),
      table("a header without rows", {"t.csv: has a header and no rows"}, "a\n"),
      table("an empty field, NA, null, NaN",
            {"t.csv: row 3: column 'a' is missing ('NA')", "`missing: NUMBER`"}, "a,b\n1,2\nNA,2\n"),
      table("an empty field with `missing: 0`", {}, "a,b\n1,2\n,2\nnull,2\n", {filled}),
      table("a text where a number is meant", {"t.csv: row 2: column 'a' holds 'dog'", "classes: auto"},
            "a\ndog\n"),
      table("a number beyond a double", {"t.csv: row 2: column 'a' holds '1e999'", "range of a double"},
            "a\n1e999\n"),
      table("texts with `classes: auto`", {}, "kind\ndog\ncat\n", {kKind}),
      table("two classes of a table that differ in case",
            {"t.csv: the classes 'Cat' and 'cat' of column 'kind' differ in case"}, "kind\nCat\ncat\n",
            {kKind}),
      {"a class of the test table that training lacks",
       {"t.csv: row 3: column 'kind' holds 'owl', which is none of its classes (cat)"},
       [](const Scratch& scratch) {
         CsvSpec train, spec;
         train.path = scratch.write("train.csv", "kind\ncat\n");
         spec.path = scratch.write("t.csv", "kind\ncat\nowl\n");
         train.columns = spec.columns = {kKind};
         spec.classes_of = std::make_shared<const CsvSpec>(train);
         return DataSpec(spec);
       }},
  };
}

// ---- photos

const test::Picture kPicture = test::picture(20, 16);

// Files below photos/, beside a good one in photos/cat.
using Files = std::map<std::string, std::string>;

void write_photos(const Scratch& scratch, const std::string& root, const Files& files) {
  for (const auto& [name, bytes] : files) {
    const fs::path path = scratch.folder() / root / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
  }
}

ImagesSpec photos_spec(const fs::path& path) {
  ImagesSpec spec;
  spec.path = path;
  spec.size = 8;
  return spec;
}

Row photos(std::string_view what, std::vector<std::string_view> parts, Files files,
           std::function<void(const fs::path&)> change = {}) {
  files.emplace("cat/good.png", test::png(kPicture));
  return {what, std::move(parts), [=](const Scratch& scratch) {
            write_photos(scratch, "photos", files);
            if (change) change(scratch.folder() / "photos");
            return DataSpec(photos_spec(scratch.folder() / "photos"));
          }};
}

Row photo_table(std::string_view what, std::vector<std::string_view> parts, std::string text) {
  return {what, std::move(parts), [=](const Scratch& scratch) {
            write_photos(scratch, "photos", {{"1.png", test::png(kPicture)}});
            write_photos(scratch, "", {{"outside.png", test::png(kPicture)}});
            ImagesSpec spec = photos_spec(scratch.write("photos/t.csv", text));
            spec.has_classes = true;
            return DataSpec(spec);
          }};
}

std::vector<Row> photo_rows() {
  const std::string png = test::png(kPicture), jpeg = test::jpeg(kPicture);
  Files turned;
  for (int orientation = 1; orientation <= 8; ++orientation)
    turned["cat/" + std::to_string(orientation) + ".JPG"] = test::jpeg_with_exif(jpeg, orientation);
  return {
      photos("JPEG, also progressive; PNG, also interlaced; WebP", {},
             {{"cat/1.jpg", jpeg},
              {"cat/2.jpeg", test::jpeg(kPicture, test::JpegKind::Progressive)},
              {"cat/3.png", test::png(kPicture, PngKind::Interlaced)},
              {"cat/4.webp", test::webp(kPicture)},
              {"cat/5.webp", test::lossy_webp(kPicture)}}),
      photos("a file that is no photo, with a photo's name",
             {"photos/dog/1.jpg: row 1 (the first is 0): is no JPEG"}, {{"dog/1.jpg", "<html>"}}),
      photos("a photo that is cut off", {"photos/dog/1.jpg: row 1 (the first is 0): is a damaged JPEG"},
             {{"dog/1.jpg", jpeg.substr(0, jpeg.size() / 2)}}),
      photos("an empty file", {"photos/dog/1.png: row 1 (the first is 0): is empty"}, {{"dog/1.png", ""}}),
      photos("a photo that EXIF turns or mirrors", {}, turned),
      photos("grey, one bit, grey with alpha", {},
             {{"cat/1.png", test::png(kPicture, PngKind::Grey)},
              {"cat/2.png", test::png(kPicture, PngKind::OneBit)},
              {"cat/3.png", test::png(kPicture, PngKind::GreyAlpha)},
              {"cat/4.jpg", test::jpeg(kPicture, test::JpegKind::Grey)}}),
      photos("CMYK", {}, {{"cat/1.jpg", test::jpeg(kPicture, test::JpegKind::Cmyk)}}),
      photos(
          "alpha", {},
          {{"cat/1.png", test::png(kPicture, PngKind::Alpha)}, {"cat/2.webp", test::alpha_webp(kPicture)}}),
      photos("a palette", {}, {{"cat/1.png", test::png(kPicture, PngKind::PaletteAlpha)}}),
      photos("sixteen bits a channel", {}, {{"cat/1.png", test::png(kPicture, PngKind::Deep)}}),
      photos("an animated PNG or WebP",
             {"photos/cat/1.webp: row 0 (the first is 0): is animated; write its first picture"},
             {{"cat/1.webp", test::animated_webp()}}),
      photos("GIF, BMP, TIFF, HEIC and others",
             {"photos/cat/1.gif: is no JPEG, PNG or WebP; convert it: convert 1.gif 1.png"},
             {{"cat/1.gif", "GIF89a"}}),
      photos("more than 67,108,864 pixels",
             {"photos/cat/1.png: row 0 (the first is 0): is 100000 x 100000 pixels, and at most 67108864 are "
              "read"},
             {{"cat/1.png", test::png_bomb(100000, 100000)}}),
      photos("a photo a thousand times longer than wide",
             {"row 0 (the first is 0): is 2000 x 1 pixels, and so no photo"},
             {{"cat/1.png", test::png(test::picture(2000, 1))}}),
      photos("files that are no pictures", {}, {{"cat/readme.txt", "hello"}, {"Thumbs.db", "x"}}),
      photos("hidden files and folders", {}, {{"cat/.1.png", "x"}, {".cache/1.png", "x"}}),
      photos("folders within a class", {}, {{"cat/more/1.png", png}, {"cat/more/and/2.png", png}}),
      photos("two classes that differ in case", {"photos: the classes 'Cat' and 'cat' differ in case alone"},
             {{"Cat/1.png", png}}),
      photos("an empty class", {"photos/dog: is a class without a photo"}, {},
             [](const fs::path& root) { fs::create_directories(root / "dog"); }),
      {"a folder without classes",
       {"photos: has no folder; a photo lies in the folder of its class, as photos/cat/1.jpg"},
       [png](const Scratch& scratch) {
         write_photos(scratch, "photos", {{"1.png", png}});
         return DataSpec(photos_spec(scratch.folder() / "photos"));
       }},
      photos("a photo beside the folders of the classes",
             {"photos/1.png: lies beside the folders of the classes"}, {{"1.png", png}}),
      {"a class of the test folder that training lacks",
       {"test/dog: is a class that", "which is trained on, does not have"},
       [png](const Scratch& scratch) {
         write_photos(scratch, "photos", {{"cat/1.png", png}});
         write_photos(scratch, "test", {{"cat/1.png", png}, {"dog/1.png", png}});
         ImagesSpec spec = photos_spec(scratch.folder() / "test");
         spec.classes_of = std::make_shared<const ImagesSpec>(photos_spec(scratch.folder() / "photos"));
         return DataSpec(spec);
       }},
      photos("a link to a photo of the same folder", {}, {},
             [](const fs::path& root) { fs::create_symlink("good.png", root / "cat" / "link.png"); }),
      photos("a link that leads out of the folder", {"cat/link.png: is a link that leads out of"}, {},
             [png](const fs::path& root) {
               std::ofstream(root.parent_path() / "outside.png", std::ios::binary) << png;
               fs::create_symlink("../../outside.png", root / "cat" / "link.png");
             }),
      photos("a link to a folder", {"cat/more: is a link to a folder"}, {{"dog/1.png", png}},
             [](const fs::path& root) { fs::create_directory_symlink("../dog", root / "cat" / "more"); }),
      photo_table("a table of photos", {}, "path,label\n1.png,dog\n./1.png,cat\n"),
      photo_table("a table that names a photo that is not there", {"t.csv: row 3: there is no file", "2.png"},
                  "path,label\n1.png,dog\n2.png,dog\n"),
      photo_table("a table that names a photo outside its folder",
                  {"t.csv: row 2: '../outside.png' is not a path within the table's folder"},
                  "path,label\n../outside.png,dog\n"),
  };
}

// ---- arrays

std::string npy(const dag::Tensor& tensor) {
  const auto npz = npz_bytes(std::vector<NpzArray>{{"x", tensor}});
  const std::string file(reinterpret_cast<const char*>(npz->data()), npz->size());
  const size_t begin = file.find("\x93NUMPY");
  return file.substr(begin, file.find("PK\x01\x02") - begin);
}

std::string with_header(const std::string& dictionary, const std::string& elements = std::string(64, '\0')) {
  return std::string("\x93NUMPY\x01\0", 8) + static_cast<char>(dictionary.size()) + '\0' + dictionary +
         elements;
}

Row array(std::string_view what, std::vector<std::string_view> parts, std::vector<std::string> files) {
  return {what, std::move(parts), [=](const Scratch& scratch) {
            NpySpec spec;
            for (size_t i = 0; i < files.size(); ++i) {
              const std::string name = "x" + std::to_string(i);
              spec.arrays[name] = scratch.write(name + ".npy", files[i]);
            }
            return DataSpec(spec);
          }};
}

std::vector<Row> array_rows() {
  const auto of = [](dag::DType dtype, int64_t count = 4) {
    return npy(
        dag::from_int64s({dtype, {count, 2}}, std::vector<int64_t>(static_cast<size_t>(count) * 2, 1)));
  };
  using enum dag::DType;
  return {
      array("u8, u16, i32, f16, f64, bool", {}, {of(U8), of(U16), of(I32), of(F16), of(F64), of(Bool)}),
      array("Fortran order",
            {"x0.npy: is in Fortran order", "np.save('x0.npy', np.ascontiguousarray(np.load('x0.npy')))"},
            {with_header("{'descr': '<f4', 'fortran_order': True, 'shape': (4, 4), }")}),
      array("big-endian numbers", {"x0.npy: dtype '>f4' is big-endian", ".astype("},
            {with_header("{'descr': '>f4', 'fortran_order': False, 'shape': (16,), }")}),
      array("objects",
            {"x0.npy: dtype '|O' is not read",
             "np.save('x0.npy', np.load('x0.npy', allow_pickle=True).astype(np.float32))"},
            {with_header("{'descr': '|O', 'fortran_order': False, 'shape': (8,), }")}),
      array("a dtype with fields", {"x0.npy: its dtype has fields"},
            {with_header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (8,), }")}),
      array("an array that is cut off, or longer than it says",
            {"x0.npy: holds an array of shape [4,2] of 32 bytes, and has 31 bytes behind its header"},
            {of(F32).substr(0, of(F32).size() - 1)}),
      array("arrays of different lengths", {"x1.npy: has 5 samples and", "x0.npy has 4"},
            {of(F32, 4), of(F32, 5)}),
      array("a single number", {"x0.npy: holds an array of shape [], which has no sample axis"},
            {npy(dag::from_int64s({F32, {}}, std::vector<int64_t>{3}))}),
  };
}

std::vector<Row> all_rows() {
  std::vector<Row> rows = table_rows();
  for (auto& more : {photo_rows(), array_rows()}) rows.insert(rows.end(), more.begin(), more.end());
  return rows;
}

// Opens it and reads every sample of every column.
Status read_all(const DataSpec& spec) {
  WEFT_TRY(const auto dataset, open_dataset(spec));
  std::vector<uint32_t> samples(dataset->sample_count());
  std::iota(samples.begin(), samples.end(), 0);
  for (size_t column = 0; column < dataset->columns().size(); ++column) {
    std::vector<std::byte> out(samples.size() *
                               static_cast<size_t>(dataset->columns()[column].sample.bytes().value));
    WEFT_TRY_STATUS(dataset->read(column, samples, out));
  }
  return {};
}

TEST(Bring, EachRowIsTakenOrRefusedAsThePageSays) {
  for (const Row& row : all_rows()) {
    SCOPED_TRACE(std::string(row.what));
    const Scratch scratch;
    const Status status = read_all(row.data(scratch));
    if (row.parts.empty()) {
      EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().message);
      continue;
    }
    ASSERT_FALSE(status.has_value());
    for (const std::string_view part : row.parts)
      EXPECT_NE(status.error().message.find(part), std::string::npos) << status.error().message;
  }
}

TEST(Bring, ThePageHasEachRowAndNoOther) {
  std::map<std::string, bool> expected;  // whether it is taken
  for (const Row& row : all_rows()) expected[std::string(row.what)] = row.parts.empty();
  std::ifstream page(WEFT_SOURCE_DIR "/docs/DATA.md");
  std::set<std::string> seen;
  bool is_in_tables = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("### "))
      is_in_tables = line != "### Files of another kind";  // tests/configs has those
    if (!is_in_tables || !line.starts_with("| ") || line.starts_with("| what |")) continue;
    const size_t bar = line.find(" | ");
    ASSERT_NE(bar, std::string::npos) << line;
    const std::string what = line.substr(2, bar - 2), how = line.substr(bar + 3);
    ASSERT_TRUE(expected.contains(what)) << what << " has no test";
    EXPECT_TRUE(how.starts_with(expected[what] ? "taken so" : "refused: ")) << line;
    EXPECT_TRUE(seen.insert(what).second) << what << " stands twice";
  }
  for (const auto& [what, taken] : expected) EXPECT_TRUE(seen.contains(what)) << what << " stands on no page";
}

}  // namespace
}  // namespace weft::data
