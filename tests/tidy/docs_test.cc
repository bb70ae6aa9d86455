// What people read: no line of README.md and docs/ is longer than 110 characters, every link leads somewhere,
// and every block of code says what it is.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {
namespace fs = std::filesystem;

constexpr size_t kLineMax = 110;    // characters
constexpr size_t kReadmeMax = 120;  // lines

struct Line {
  std::string text;
  size_t number = 0;
  bool is_code = false;  // within a block, its fences too
};

std::vector<Line> lines_of(std::istream& in) {
  std::vector<Line> lines;
  bool is_code = false;
  std::string text;
  while (std::getline(in, text)) {
    const bool is_fence = text.starts_with("```");
    lines.push_back({text, lines.size() + 1, is_code || is_fence});
    if (is_fence) is_code = !is_code;
  }
  return lines;
}
std::vector<Line> lines_of(const fs::path& path) {
  std::ifstream in(path);
  return lines_of(in);
}

size_t characters_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// A row of a table, or what has no place to break it: a reference to an address.
bool may_be_long(const Line& line) {
  static const std::regex kReference(R"(\s*\[[^\]]+\]: \S+)");
  return line.text.starts_with("|") || (!line.is_code && std::regex_match(line.text, kReference));
}

// As GitHub makes it of a heading.
std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : heading) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) || c == '-' || c == '_' || byte >= 0x80)
      anchor += static_cast<char>(std::tolower(byte));
    else if (c == ' ')
      anchor += '-';
  }
  return anchor;
}

std::set<std::string> anchors_of(const std::vector<Line>& lines) {
  static const std::regex kLinkText(R"(\[([^\]]*)\]\([^)]*\))");
  std::set<std::string> anchors;
  std::map<std::string, int> seen;
  for (const Line& line : lines) {
    const size_t level = line.text.find_first_not_of('#');
    if (line.is_code || level == 0 || level == std::string::npos || line.text[level] != ' ') continue;
    const std::string anchor = anchor_of(std::regex_replace(line.text.substr(level + 1), kLinkText, "$1"));
    const int before = seen[anchor]++;
    anchors.insert(before == 0 ? anchor : anchor + "-" + std::to_string(before));
  }
  return anchors;
}

// The addresses that a line names, but for those of the web.
std::vector<std::string> links_of(const Line& line) {
  static const std::regex kCode("`[^`]*`"), kLink(R"(\]\(([^)\s]+)\)|^\s*\[[^\]]+\]: (\S+))");
  std::vector<std::string> links;
  if (line.is_code) return links;
  const std::string text = std::regex_replace(line.text, kCode, "`");
  for (std::sregex_iterator found(text.begin(), text.end(), kLink), end; found != end; ++found) {
    const std::string link = (*found)[1].matched ? (*found)[1] : (*found)[2];
    if (link.find("://") == std::string::npos) links.push_back(link);
  }
  return links;
}

// What is wrong with a link of the page; empty: nothing.
std::string fault_of(const fs::path& page, const std::string& link) {
  const size_t hash = link.find('#');
  const std::string file = link.substr(0, hash);
  const fs::path target = file.empty() ? page : (page.parent_path() / file).lexically_normal();
  if (!fs::exists(target)) return "there is no " + target.string();
  if (hash == std::string::npos) return "";
  if (fs::is_directory(target)) return target.string() + " is a folder, and has no headings";
  if (anchors_of(lines_of(target)).contains(link.substr(hash + 1))) return "";
  return target.string() + " has no heading for #" + link.substr(hash + 1);
}

std::vector<fs::path> pages() {
  const fs::path root = WEFT_SOURCE_DIR;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(root))
    if (entry.path().extension() == ".md") found.push_back(entry.path());
  for (const auto& entry : fs::recursive_directory_iterator(root / "docs"))
    if (entry.path().extension() == ".md") found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

TEST(Docs, NoLineIsLongerThanThoseOfTheCode) {
  ASSERT_GT(pages().size(), 10u);
  for (const fs::path& page : pages())
    for (const Line& line : lines_of(page)) {
      if (may_be_long(line)) continue;
      EXPECT_LE(characters_of(line.text), kLineMax) << page.string() << ":" << line.number;
    }
}

TEST(Docs, TheReadmeIsRead) {
  const auto lines = lines_of(fs::path(WEFT_SOURCE_DIR) / "README.md");
  EXPECT_LE(lines.size(), kReadmeMax);
  for (const Line& line : lines) EXPECT_LE(characters_of(line.text), kLineMax) << "README.md:" << line.number;
}

TEST(Docs, EachLinkLeadsSomewhere) {
  size_t links = 0;
  for (const fs::path& page : pages())
    for (const Line& line : lines_of(page))
      for (const std::string& link : links_of(line)) {
        EXPECT_EQ(fault_of(page, link), "") << page.string() << ":" << line.number;
        ++links;
      }
  EXPECT_GT(links, 50u);
}

// tests/docs/run.sh goes by it.
TEST(Docs, EachBlockOfCodeSaysWhatItIs) {
  for (const fs::path& page : pages()) {
    bool is_open = false;
    for (const Line& line : lines_of(page)) {
      if (!line.text.starts_with("```")) continue;
      is_open = !is_open;
      EXPECT_TRUE(!is_open || line.text.size() > 3) << page.string() << ":" << line.number;
    }
    EXPECT_FALSE(is_open) << page.string() << " has a block that does not end";
  }
}

TEST(Docs, FaultsOfLinksAreFound) {
  const fs::path readme = fs::path(WEFT_SOURCE_DIR) / "README.md";
  EXPECT_EQ(fault_of(readme, "docs/OPS.md"), "");
  EXPECT_EQ(fault_of(readme, "#weft"), "");
  EXPECT_NE(fault_of(readme, "docs/NONE.md"), "");
  EXPECT_NE(fault_of(readme, "docs/OPS.md#no-such-heading"), "");
  EXPECT_NE(fault_of(readme, "docs#weft"), "");
}

TEST(Docs, WhatStandsInCodeIsNoLinkAndNoHeading) {
  std::istringstream text(
      "# A `b`: c_d\n```sh\n# not [a](link)\n```\n`[x](y)` [l](m#n) [o](https://p)\n[q]: r.md\n## A `b`: "
      "c_d\n");
  const auto lines = lines_of(text);
  EXPECT_EQ(anchors_of(lines), (std::set<std::string>{"a-b-c_d", "a-b-c_d-1"}));
  std::vector<std::string> links;
  for (const Line& line : lines)
    for (const std::string& link : links_of(line)) links.push_back(link);
  EXPECT_EQ(links, (std::vector<std::string>{"m#n", "r.md"}));
}

}  // namespace
