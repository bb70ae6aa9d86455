// Functions, classes and files stay small enough to read (CONTRIBUTING.md). The last test prints the table
// that docs/HACKING.md has.
#include "tests/tidy/sizes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "tests/tidy/tree.h"

namespace weft::tidy {
namespace {

constexpr size_t kFunctionLinesMax = 80;
constexpr size_t kFileLinesMax = 500;
constexpr size_t kMembersMax = 25;
constexpr size_t kClassLinesMax = 400;  // all its functions counted

struct Named {
  std::string name;
  size_t size = 0;
};

// What of the tree is of each size, the largest first.
struct Tree {
  std::vector<Named> functions;
  std::vector<Named> files;
  std::vector<Named> classes;  // with their functions elsewhere in the folder
  std::vector<Named> members;  // of classes
};

void by_size(std::vector<Named>& all) {
  std::stable_sort(all.begin(), all.end(), [](const Named& a, const Named& b) { return a.size > b.size; });
}

std::string at(const std::filesystem::path& file, size_t line, const std::string& name) {
  return name + " (" + file.generic_string() + ":" + std::to_string(line) + ")";
}

// "Broker" of "Broker::step"; empty where it is defined within its class, or has none.
std::string owner_of(const std::string& function) {
  const size_t end = function.rfind("::");
  if (end == std::string::npos) return {};
  const size_t before = end == 0 ? std::string::npos : function.rfind("::", end - 1);
  const size_t begin = before == std::string::npos ? 0 : before + 2;
  return function.substr(begin, end - begin);
}

using Outside = std::map<std::pair<std::filesystem::path, std::string>, size_t>;  // folder, class: lines

void add(const std::filesystem::path& file, const Sizes& sizes, Tree& tree, Outside& outside) {
  tree.files.push_back({file.generic_string(), sizes.lines});
  for (const Function& function : sizes.functions) {
    tree.functions.push_back({at(file, function.line, function.name), function.lines});
    outside[{file.parent_path(), owner_of(function.name)}] += function.lines;
  }
}

Tree measure() {
  Tree tree;
  Outside outside;
  std::vector<std::pair<std::filesystem::path, Class>> classes;
  for (const auto& file : sources_and_kernels()) {
    const Sizes sizes = sizes_of(read(file));
    add(file, sizes, tree, outside);
    for (const Class& each : sizes.classes) classes.emplace_back(file, each);
  }
  for (const auto& [file, each] : classes) {
    const std::string name = at(file, each.line, each.name);
    tree.classes.push_back({name, each.lines + outside[{file.parent_path(), each.name}]});
    tree.members.push_back({name, each.members});
  }
  for (auto* all : {&tree.functions, &tree.files, &tree.classes, &tree.members}) by_size(*all);
  return tree;
}
const Tree& tree() {
  static const Tree kTree = measure();
  return kTree;
}

size_t quantile(const std::vector<Named>& largest_first, double part) {
  const size_t last = largest_first.size() - 1;
  return largest_first[last - static_cast<size_t>(part * static_cast<double>(last))].size;
}

// `limit`: how many are above it is told as well.
void print(const char* what, const std::vector<Named>& all, size_t limit) {
  const auto above =
      std::count_if(all.begin(), all.end(), [&](const Named& each) { return each.size > limit; });
  std::printf("%-18s %6zu, median %zu, p90 %zu, p99 %zu, largest %zu; above %zu: %td\n", what, all.size(),
              quantile(all, 0.5), quantile(all, 0.9), quantile(all, 0.99), all.front().size, limit, above);
  for (size_t i = 0; i < std::min<size_t>(10, all.size()); ++i)
    std::printf("  %4zu %s\n", all[i].size, all[i].name.c_str());
}

void expect_none_above(const std::vector<Named>& all, size_t most) {
  for (const Named& each : all) {
    if (each.size <= most) break;
    ADD_FAILURE() << each.name << " has " << each.size << ", which is more than " << most;
  }
}

Sizes of(const char* text) { return sizes_of(text); }

TEST(SizesOf, FunctionsAreFoundWhereverTheyStand) {
  const Sizes sizes = of(R"(
namespace a {
int one() { return 1; }
template <class T, class U = std::vector<T>>
std::map<T, std::function<void(int)>> Deep<T>::two(
    const T& t, X x = {}) const noexcept {
  if (t) { x({1, 2}); }
  return {};
}
struct S {
  S() : a_(1), b_{2} {
    a_ = 3;
  }
  bool operator==(const S&) const = default;
  bool operator()(int i) const { return i; }
  auto last() -> std::pair<int, int> {
    return {}; }
  int a_ = f(1, 2), b_ = 1, c_{}, d_[2]{};
  std::vector<int> c_{1, 2};
  std::function<void(int, int)> d_;
  std::deque<int> e_ WEFT_GUARDED_BY(m_);
  static constexpr int kNone = 0;
  using T = int;
  enum class E { A, B } e;
 private:
  int f_;
};
}
)");
  std::vector<std::string> names;
  std::vector<size_t> lines;
  for (const Function& function : sizes.functions) {
    names.push_back(function.name);
    lines.push_back(function.lines);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"one", "Deep::two", "S", "operator()", "last"}));
  EXPECT_EQ(lines, (std::vector<size_t>{1, 6, 3, 1, 2}));
  ASSERT_EQ(sizes.classes.size(), 1u);
  EXPECT_EQ(sizes.classes[0].name, "S");
  EXPECT_EQ(sizes.classes[0].lines, 18u);
  EXPECT_EQ(sizes.classes[0].members, 9u);
}

TEST(SizesOf, LambdasAreFunctionsAndValuesAreNot) {
  const Sizes sizes = of(R"(
const std::map<int, F> kTable = {
    {1, [](int a) { return a; }},
    {2, [](int a) -> Result<int> {
       return a;
     }},
};
void outer() {
  const auto add = [&, n = std::vector<int>{1}]() mutable {
    return n[0];
  };
  int a[2]{1, 2};
  run([this] { go(Point{1, 2}); }, a[1]);
  for (int i = 0; i < 3; ++i) {
    switch (i) {
      case 1: { break; }
    }
  }
}
)");
  std::vector<size_t> lines;
  for (const Function& function : sizes.functions) lines.push_back(function.lines);
  EXPECT_EQ(lines, (std::vector<size_t>{1, 3, 3, 1, 12}));
  EXPECT_EQ(sizes.functions.back().name, "outer");
}

TEST(SizesOf, BracesInTextAreNone) {
  const Sizes sizes = of(
      "void a() {\n  f(\"{\", '{', R\"x({{)x\");  // {\n  /* { */ g(1'000);\n}\n#define B {\nint c() {}\n");
  ASSERT_EQ(sizes.functions.size(), 2u);
  EXPECT_EQ(sizes.functions[0].lines, 4u);
  EXPECT_EQ(sizes.functions[1].name, "c");
}

TEST(Sizes, NoFunctionIsLong) { expect_none_above(tree().functions, kFunctionLinesMax); }
TEST(Sizes, NoFileIsLong) { expect_none_above(tree().files, kFileLinesMax); }
TEST(Sizes, NoClassHasManyMembers) { expect_none_above(tree().members, kMembersMax); }
TEST(Sizes, NoClassIsLong) { expect_none_above(tree().classes, kClassLinesMax); }

TEST(Sizes, AreTheseToday) {
  EXPECT_GT(tree().functions.size(), 10000u) << "functions are not found any more";
  print("functions: lines", tree().functions, kFunctionLinesMax);
  print("files: lines", tree().files, kFileLinesMax);
  print("classes: members", tree().members, kMembersMax);
  print("classes: lines", tree().classes, kClassLinesMax);
}

}  // namespace
}  // namespace weft::tidy
