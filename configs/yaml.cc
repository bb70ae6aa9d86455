#include "configs/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "base/typing_distance.h"
namespace weft::configs {
namespace {

// Thrown from the handler through yaml-cpp, which has no other way to stop; caught in parse_yaml.
struct Stop {
  Error error;
};

size_t count_nodes(const Node& node) {
  size_t count = 1;
  for (const Node& item : node.items) count += count_nodes(item);
  for (const Entry& entry : node.entries) count += count_nodes(entry.value);
  return count;
}

// Builds the tree from events. yaml-cpp's own Node keeps the last of two equal keys and shares aliased nodes.
class TreeBuilder final : public YAML::EventHandler {
 public:
  explicit TreeBuilder(const std::string& source) : source_(source) {}
  Node take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(make(mark, Node::Kind::Null), anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) stop(mark, "this alias stands inside what it names; write the value out");
    count_ += count_nodes(found->second);
    check_count(mark);  // before the copy is made: this is where a bomb goes off
    add(Node(found->second), 0);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    check_tag(mark, tag);
    Node node = make(mark, Node::Kind::Scalar);
    node.text = value;
    node.quoted = tag != "?";
    add(std::move(node), anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    check_tag(mark, tag);
    open(mark, Node::Kind::Sequence, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    check_tag(mark, tag);
    open(mark, Node::Kind::Map, anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Frame {
    Node node;
    YAML::anchor_t anchor = 0;
    bool has_key = false;
    std::string key;
    Location key_where;
  };

  Location place(const YAML::Mark& mark) const { return {source_, mark.line + 1, mark.column + 1, false}; }
  [[noreturn]] void stop(const YAML::Mark& mark, const std::string& what,
                         ErrorCode code = ErrorCode::InvalidArgument) const {
    throw Stop{{code, to_string(place(mark)) + ": " + what}};
  }
  void check_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (!tag.empty() && tag != "?" && tag != "!")
      stop(mark, "tags (" + tag.substr(0, 40) + ") are not read; leave it out");
  }
  void check_count(const YAML::Mark& mark) const {
    if (count_ > kYamlNodesMax)
      stop(mark, "more than " + std::to_string(kYamlNodesMax) + " values; this is not a file of ours",
           ErrorCode::ResourceExhausted);
  }
  Node make(const YAML::Mark& mark, Node::Kind kind) {
    ++count_;
    check_count(mark);
    Node node;
    node.kind = kind;
    node.where = place(mark);
    return node;
  }
  void open(const YAML::Mark& mark, Node::Kind kind, YAML::anchor_t anchor) {
    if (stack_.size() >= kYamlDepthMax)
      stop(mark, "nested more than " + std::to_string(kYamlDepthMax) + " deep", ErrorCode::ResourceExhausted);
    stack_.push_back({make(mark, kind), anchor, false, {}, {}});
  }
  void close() {
    Frame frame = std::move(stack_.back());
    stack_.pop_back();
    add(std::move(frame.node), frame.anchor);
  }
  void add(Node node, YAML::anchor_t anchor) {
    if (anchor != 0) anchors_[anchor] = node;
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& frame = stack_.back();
    if (frame.node.kind == Node::Kind::Sequence) {
      frame.node.items.push_back(std::move(node));
    } else if (!frame.has_key) {
      add_key(frame, node);
    } else {
      frame.has_key = false;
      frame.node.entries.push_back({std::move(frame.key), std::move(frame.key_where), std::move(node)});
    }
  }
  void add_key(Frame& frame, const Node& node) const {
    const auto refuse = [&](const std::string& what) {
      throw Stop{{ErrorCode::InvalidArgument, to_string(node.where) + ": " + what}};
    };
    if (node.kind != Node::Kind::Scalar) refuse("a key must be a plain word");
    if (const Entry* first = frame.node.find(node.text))
      refuse("key '" + node.text + "' stands here for the second time, after " + to_string(first->where) +
             "; keep one");
    frame.has_key = true;
    frame.key = node.text;
    frame.key_where = node.where;
  }

  std::string source_;
  Node root_;
  std::vector<Frame> stack_;
  std::map<YAML::anchor_t, Node> anchors_;
  size_t count_ = 0;
};

}  // namespace

std::string to_string(const Location& location) {
  if (location.line == 0) return location.source;
  return location.source + ":" + std::to_string(location.line) + ":" + std::to_string(location.column);
}

const Entry* Node::find(std::string_view key) const {
  for (const Entry& entry : entries)
    if (entry.key == key) return &entry;
  return nullptr;
}

Result<Node> parse_yaml(std::string_view text, const std::string& source) {
  if (text.size() > kYamlSizeMax)
    return fail(ErrorCode::ResourceExhausted, source + ": " + std::to_string(text.size()) +
                                                  " bytes; at most " + std::to_string(kYamlSizeMax) +
                                                  " are read");
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    TreeBuilder builder(source);
    if (!parser.HandleNextDocument(builder)) return fail(ErrorCode::InvalidArgument, source + ": is empty");
    TreeBuilder second(source);
    if (parser.HandleNextDocument(second))
      return fail(ErrorCode::InvalidArgument, source + ": holds a second document (after ---); keep one");
    return builder.take();
  } catch (Stop& stop) {
    return fail(std::move(stop.error));
  } catch (const YAML::Exception& problem) {
    const Location where{source, problem.mark.line + 1, problem.mark.column + 1, false};
    return fail(ErrorCode::InvalidArgument, to_string(where) + ": not YAML: " + problem.msg);
  } catch (const std::exception& problem) {
    return fail(ErrorCode::InvalidArgument, source + ": cannot be parsed: " + problem.what());
  }
}

namespace {

void relocate(Node& node, const Location& where) {
  node.where = where;
  for (Node& item : node.items) relocate(item, where);
  for (Entry& entry : node.entries) {
    entry.where = where;
    relocate(entry.value, where);
  }
}

Node& find_or_create(Node& map, const std::string& key, const Location& where) {
  for (Entry& entry : map.entries)
    if (entry.key == key) return entry.value;
  map.entries.push_back({key, where, {}});
  map.entries.back().value.where = where;
  return map.entries.back().value;
}

}  // namespace

Status apply_set(Node& root, std::string_view assignment) {
  const auto refuse = [&](const std::string& what) {
    return fail(ErrorCode::InvalidArgument, "--set " + std::string(assignment.substr(0, 200)) + ": " + what);
  };
  const size_t equals = assignment.find('=');
  if (equals == std::string_view::npos || equals == 0) return refuse("not of the form a.b=value");
  const std::string path(assignment.substr(0, equals));
  const Location where{"--set " + path, 0, 0, true};
  WEFT_TRY(Node value, parse_yaml(assignment.substr(equals + 1), where.source));
  relocate(value, where);

  Node* node = &root;
  Node* parent = nullptr;
  std::string last;
  std::istringstream parts(path + ".");
  size_t depth = 0;
  for (std::string key; std::getline(parts, key, '.');) {
    if (key.empty()) return refuse("the path '" + path + "' has an empty part");
    if (++depth > kYamlDepthMax)
      return refuse("the path is nested more than " + std::to_string(kYamlDepthMax) + " deep");
    if (node->kind == Node::Kind::Null) node->kind = Node::Kind::Map;
    if (node->kind != Node::Kind::Map)
      return refuse("what stands before '." + key + "' is a value, not a map (" + to_string(node->where) +
                    ")");
    parent = node;
    last = key;
    node = &find_or_create(*node, key, where);
  }
  if (value.kind == Node::Kind::Null)  // `a.b=null` takes the key away
    std::erase_if(parent->entries, [&](const Entry& entry) { return entry.key == last; });
  else
    *node = std::move(value);
  return {};
}

std::string suggestion(std::string_view word, std::span<const std::string> candidates) {
  const std::string* best = nullptr;
  size_t best_distance = std::min<size_t>(3, word.size() / 2 + 1);  // at or beyond this it is another word
  for (const std::string& candidate : candidates) {
    if (word.size() > 64) break;
    const size_t distance = typing_distance(word, candidate);
    if (distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
  }
  if (best) return " (did you mean '" + *best + "'?)";
  std::string list;
  for (const std::string& candidate : candidates) list += (list.empty() ? "" : ", ") + candidate;
  return list.empty() ? "" : "; there are: " + list;
}

}  // namespace weft::configs
