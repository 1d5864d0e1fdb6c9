// Implementation of parser.h: recursive descent with Jinja2's precedence. The recursion is bounded twice: by the
// nesting counter while parsing, and by the depth of the tree that long chains of operators build without recursion.
#include "engine/template/parser.h"

#include <algorithm>
#include <initializer_list>

#include "engine/template/interpreter.h"
#include "engine/template/lexer.h"
#include "engine/template/value.h"

namespace fovea::jinja {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  NodePtr run() { return body({}); }

 private:
  // Counts nesting while it lives.
  struct Nesting {
    explicit Nesting(Parser& parser) : parser(parser) {
      if (++parser.nesting_ > kMaxTreeDepth)
        parser.error("the template nests deeper than " + std::to_string(kMaxTreeDepth));
    }
    ~Nesting() { --parser.nesting_; }
    Parser& parser;
  };
  struct MacroUse {
    bool varargs = false, kwargs = false;
  };

  // Tokens.
  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& next() {
    const Token& token = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  [[noreturn]] void error(const std::string& message) const { throw TemplateError(now().line, message); }
  std::string describe(const Token& token) const {
    switch (token.kind) {
      case TokenKind::kEnd: return "the end of the template";
      case TokenKind::kData: return "text";
      case TokenKind::kVariableEnd: return "'}}'";
      case TokenKind::kBlockEnd: return "'%}'";
      case TokenKind::kString: return "a string";
      default: return "'" + token.text + "'";
    }
  }
  bool is_op(std::string_view op) const { return now().kind == TokenKind::kOperator && now().text == op; }
  bool is_name(std::string_view name) const { return now().kind == TokenKind::kName && now().text == name; }
  bool skip_op(std::string_view op) { return is_op(op) && (next(), true); }
  bool skip_name(std::string_view name) { return is_name(name) && (next(), true); }
  void expect_op(std::string_view op) {
    if (!skip_op(op)) error("expected '" + std::string(op) + "', got " + describe(now()));
  }
  void expect_name(std::string_view name) {
    if (!skip_name(name)) error("expected '" + std::string(name) + "', got " + describe(now()));
  }
  std::string expect_identifier(const char* what) {
    if (now().kind != TokenKind::kName) error(std::string("expected ") + what + ", got " + describe(now()));
    return next().text;
  }
  void expect_block_end() {
    if (now().kind != TokenKind::kBlockEnd) error("expected '%}', got " + describe(now()));
    next();
  }

  // Nodes.
  NodePtr make(NodeKind kind) {
    if (++nodes_ > kMaxNodes) error("the template has more than " + std::to_string(kMaxNodes) + " nodes");
    auto node = std::make_unique<Node>();
    node->kind = kind;
    node->line = now().line;
    return node;
  }
  template <typename... Children>
  NodePtr make(NodeKind kind, Children... children) {
    NodePtr node = make(kind);
    (add(*node, std::move(children)), ...);
    return node;
  }
  void add(Node& parent, NodePtr child) {
    if (child) {
      parent.depth = std::max(parent.depth, child->depth + 1);
      if (parent.depth > kMaxTreeDepth) error("an expression nests deeper than " + std::to_string(kMaxTreeDepth));
    }
    parent.children.push_back(std::move(child));
  }

  // Expressions.
  NodePtr expression() {
    Nesting nesting(*this);
    NodePtr value = disjunction();
    while (is_name("if")) {
      NodePtr node = make(NodeKind::kCondition);
      next();
      NodePtr condition = disjunction();
      NodePtr other;
      ++guarded_;
      if (skip_name("else")) other = expression();
      --guarded_;
      add(*node, std::move(value));
      add(*node, std::move(condition));
      add(*node, std::move(other));
      value = std::move(node);
    }
    return value;
  }

  NodePtr disjunction() {
    NodePtr left = conjunction();
    while (skip_name("or")) left = make(NodeKind::kOr, std::move(left), conjunction());
    return left;
  }

  NodePtr conjunction() {
    NodePtr left = negation();
    while (skip_name("and")) left = make(NodeKind::kAnd, std::move(left), negation());
    return left;
  }

  NodePtr negation() {
    if (!is_name("not")) return comparison();
    Nesting nesting(*this);
    next();
    return make(NodeKind::kNot, negation());
  }

  NodePtr comparison() {
    NodePtr first = sum();
    NodePtr node;
    for (;;) {
      std::string op;
      if (now().kind == TokenKind::kOperator) {
        for (const char* known : {"==", "!=", "<", "<=", ">", ">="}) {
          if (now().text == known) op = known;
        }
        if (!op.empty()) next();
      } else if (is_name("in")) {
        next();
        op = "in";
      } else if (is_name("not") && ahead().kind == TokenKind::kName && ahead().text == "in") {
        next();
        next();
        op = "not in";
      }
      if (op.empty()) break;
      if (!node) node = make(NodeKind::kCompare, std::move(first));
      node->names.push_back(op);
      add(*node, sum());
    }
    return node ? std::move(node) : std::move(first);
  }

  NodePtr binary(std::string op, NodePtr left, NodePtr right) {
    NodePtr node = make(NodeKind::kBinary, std::move(left), std::move(right));
    node->text = std::move(op);
    return node;
  }

  NodePtr sum() {
    NodePtr left = concatenation();
    while (is_op("+") || is_op("-")) {
      std::string op = next().text;
      left = binary(std::move(op), std::move(left), concatenation());
    }
    return left;
  }

  NodePtr concatenation() {
    NodePtr first = product();
    if (!is_op("~")) return first;
    NodePtr node = make(NodeKind::kConcat, std::move(first));
    while (skip_op("~")) add(*node, product());
    return node;
  }

  NodePtr product() {
    NodePtr left = power();
    while (is_op("*") || is_op("/") || is_op("//") || is_op("%")) {
      std::string op = next().text;
      left = binary(std::move(op), std::move(left), power());
    }
    return left;
  }

  NodePtr power() {
    NodePtr left = unary(true);
    while (skip_op("**")) left = binary("**", std::move(left), unary(true));
    return left;
  }

  NodePtr unary(bool with_filters) {
    Nesting nesting(*this);
    NodePtr node;
    if (is_op("-") || is_op("+")) {
      const NodeKind kind = next().text == "-" ? NodeKind::kNegative : NodeKind::kPositive;
      node = make(kind, unary(false));
    } else {
      node = primary();
    }
    node = postfix(std::move(node));
    return with_filters ? filters_and_tests(std::move(node)) : std::move(node);
  }

  NodePtr primary() {
    NodePtr node = make(NodeKind::kNone);
    const Token& token = now();
    switch (token.kind) {
      case TokenKind::kName:
        if (token.text == "true" || token.text == "True" || token.text == "false" || token.text == "False") {
          node->kind = NodeKind::kBool;
          node->integer = token.text[0] == 't' || token.text[0] == 'T';
        } else if (token.text != "none" && token.text != "None") {
          node->kind = NodeKind::kName;
          node->text = token.text;
          if (!macros_.empty()) {
            macros_.back().varargs |= token.text == "varargs";
            macros_.back().kwargs |= token.text == "kwargs";
          }
        }
        next();
        return node;
      case TokenKind::kString:
        node->kind = NodeKind::kString;
        while (now().kind == TokenKind::kString) node->text += next().text;
        return node;
      case TokenKind::kInteger:
        node->kind = NodeKind::kInteger;
        node->integer = next().integer;
        return node;
      case TokenKind::kFloat:
        node->kind = NodeKind::kFloat;
        node->number = next().number;
        return node;
      case TokenKind::kOperator:
        if (skip_op("(")) {
          node = is_op(")") ? make(NodeKind::kTuple) : tuple(true);
          expect_op(")");
          return node;
        }
        if (skip_op("[")) return sequence(std::move(node));
        if (skip_op("{")) return dictionary(std::move(node));
        break;
      default: break;
    }
    error("expected an expression, got " + describe(token));
  }

  NodePtr sequence(NodePtr node) {
    node->kind = NodeKind::kList;
    while (!is_op("]")) {
      if (!node->children.empty()) expect_op(",");
      if (is_op("]")) break;
      add(*node, expression());
    }
    expect_op("]");
    return node;
  }

  NodePtr dictionary(NodePtr node) {
    node->kind = NodeKind::kDict;
    while (!is_op("}")) {
      if (!node->children.empty()) expect_op(",");
      if (is_op("}")) break;
      add(*node, expression());
      expect_op(":");
      add(*node, expression());
    }
    expect_op("}");
    return node;
  }

  // One expression, or several with commas between, which make a tuple. Without conditions the items stop before "if",
  // which is how "for x in a, b if c" reads.
  NodePtr tuple(bool with_conditions) {
    const auto item = [&] { return with_conditions ? expression() : disjunction(); };
    NodePtr first = item();
    if (!is_op(",")) return first;
    NodePtr node = make(NodeKind::kTuple, std::move(first));
    while (skip_op(",")) {
      if (is_op(")") || now().kind == TokenKind::kBlockEnd || now().kind == TokenKind::kVariableEnd) break;
      add(*node, item());
    }
    return node;
  }

  NodePtr postfix(NodePtr node) {
    for (;;) {
      if (is_op(".") || is_op("[")) {
        node = subscript(std::move(node));
      } else if (is_op("(")) {
        node = call(std::move(node));
      } else {
        return node;
      }
    }
  }

  NodePtr subscript(NodePtr object) {
    if (skip_op(".")) {
      if (now().kind == TokenKind::kInteger) {
        NodePtr key = make(NodeKind::kInteger);
        key->integer = next().integer;
        return make(NodeKind::kItem, std::move(object), std::move(key));
      }
      NodePtr node = make(NodeKind::kAttribute, std::move(object));
      node->text = expect_identifier("a name or number behind '.'");
      return node;
    }
    expect_op("[");
    NodePtr start;
    if (!is_op(":")) start = expression();
    if (!is_op(":")) {
      expect_op("]");
      return make(NodeKind::kItem, std::move(object), std::move(start));
    }
    next();
    NodePtr stop, step;
    if (!is_op("]") && !is_op(":")) stop = expression();
    if (skip_op(":") && !is_op("]")) step = expression();
    expect_op("]");
    return make(NodeKind::kSlice, std::move(object), std::move(start), std::move(stop), std::move(step));
  }

  void arguments(Node& node) {
    expect_op("(");
    for (bool first = true; !is_op(")"); first = false) {
      if (!first) expect_op(",");
      if (is_op(")")) break;
      if (is_op("*") || is_op("**")) error("'*' and '**' arguments are not supported");
      if (now().kind == TokenKind::kName && ahead().kind == TokenKind::kOperator && ahead().text == "=") {
        node.names.push_back(next().text);
        next();
      } else if (!node.names.empty()) {
        error("expected a keyword argument behind '" + node.names.back() + "'");
      }
      add(node, expression());
    }
    expect_op(")");
  }

  NodePtr call(NodePtr callee) {
    NodePtr node = make(NodeKind::kCall, std::move(callee));
    arguments(*node);
    return node;
  }

  NodePtr filters_and_tests(NodePtr node) {
    for (;;) {
      if (is_op("|")) {
        node = filter(std::move(node));
      } else if (is_name("is")) {
        node = test(std::move(node));
      } else if (is_op("(")) {
        node = call(std::move(node));
      } else {
        return node;
      }
    }
  }

  std::string dotted_name(const char* what) {
    std::string name = expect_identifier(what);
    while (skip_op(".")) name += "." + expect_identifier(what);
    return name;
  }

  // One "| name(arguments)"; the bar may be absent for the first filter of a block.
  NodePtr filter(NodePtr input) {
    skip_op("|");
    NodePtr node = make(NodeKind::kFilter, std::move(input));
    node->text = dotted_name("the name of a filter");
    if (guarded_ == 0 && find_filter(node->text) == nullptr) error("there is no filter '" + node->text + "'");
    if (is_op("(")) arguments(*node);
    return node;
  }

  NodePtr test(NodePtr input) {
    expect_name("is");
    const bool negated = skip_name("not");
    NodePtr node = make(NodeKind::kTest, std::move(input));
    node->text = dotted_name("the name of a test");
    if (guarded_ == 0 && find_test(node->text) == nullptr) error("there is no test '" + node->text + "'");
    const Token& token = now();
    // As in Jinja2, any name but these three is taken as an operand.
    const bool operand =
        token.kind == TokenKind::kString || token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat ||
        is_op("[") || is_op("{") ||
        (token.kind == TokenKind::kName && token.text != "else" && token.text != "or" && token.text != "and");
    if (is_op("(")) {
      arguments(*node);
    } else if (is_name("is")) {
      error("tests cannot be chained with 'is'");
    } else if (operand) {
      Nesting nesting(*this);
      add(*node, postfix(primary()));
    }
    return negated ? make(NodeKind::kNot, std::move(node)) : std::move(node);
  }

  // Statements.
  bool at_tag(std::initializer_list<std::string_view> names) const {
    return now().kind == TokenKind::kBlockBegin && ahead().kind == TokenKind::kName &&
           std::find(names.begin(), names.end(), ahead().text) != names.end();
  }

  // Everything up to one of the given tags (or, if there are none, to the end).
  NodePtr body(std::initializer_list<std::string_view> ends) {
    Nesting nesting(*this);
    NodePtr node = make(NodeKind::kBody);
    const int begin = tokens_[at_ == 0 ? 0 : at_ - 1].line;
    for (;;) {
      const Token& token = now();
      if (token.kind == TokenKind::kEnd) {
        if (ends.size() == 0) return node;
        error("the template ends inside a block that begins on line " + std::to_string(begin) + ", expected '" +
              std::string(*(ends.end() - 1)) + "'");
      }
      if (at_tag(ends)) return node;
      if (token.kind == TokenKind::kData) {
        NodePtr data = make(NodeKind::kData);
        data->text = next().text;
        add(*node, std::move(data));
      } else if (token.kind == TokenKind::kVariableBegin) {
        NodePtr output = make(NodeKind::kOutput);
        next();
        add(*output, tuple(true));
        if (now().kind != TokenKind::kVariableEnd) error("expected '}}', got " + describe(now()));
        next();
        add(*node, std::move(output));
      } else {
        next();
        add(*node, statement());
      }
    }
  }

  // The closing tag of a block.
  void end(std::string_view name) {
    next();
    expect_name(name);
    expect_block_end();
  }

  NodePtr statement() {
    const std::string name = expect_identifier("the name of a statement");
    if (name == "if") return if_statement();
    if (name == "for") return for_statement();
    if (name == "set") return set_statement();
    if (name == "macro") return macro_statement();
    if (name == "call") return call_statement();
    if (name == "with") return with_statement();
    if (name == "filter") {
      NodePtr node = make(NodeKind::kFilterBlock);
      add(*node, filter_chain());
      expect_block_end();
      add(*node, body({"endfilter"}));
      end("endfilter");
      return node;
    }
    if (name == "generation") {
      NodePtr node = make(NodeKind::kScope);
      expect_block_end();
      add(*node, body({"endgeneration"}));
      end("endgeneration");
      return node;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) error("'" + name + "' outside a loop");
      NodePtr node = make(name == "break" ? NodeKind::kBreak : NodeKind::kContinue);
      expect_block_end();
      return node;
    }
    error("unknown statement '" + name +
          "', expected if, for, set, macro, call, with, filter, raw, generation, break or continue");
  }

  NodePtr if_statement() {
    NodePtr node = make(NodeKind::kIf);
    add(*node, tuple(true));
    expect_block_end();
    for (;;) {
      ++guarded_;
      add(*node, body({"elif", "else", "endif"}));
      --guarded_;
      next();
      if (skip_name("elif")) {
        add(*node, tuple(true));
        expect_block_end();
        continue;
      }
      if (skip_name("else")) {
        expect_block_end();
        ++guarded_;
        add(*node, body({"endif"}));
        --guarded_;
        next();
      }
      expect_name("endif");
      expect_block_end();
      return node;
    }
  }

  // A name, an attribute of a namespace, or several with commas (and brackets) between.
  NodePtr target(bool with_attributes) {
    const auto one = [&]() -> NodePtr {
      if (skip_op("(")) {
        Nesting nesting(*this);
        NodePtr inner = target(false);
        expect_op(")");
        return inner;
      }
      NodePtr node = make(NodeKind::kName);
      node->text = expect_identifier("a name to assign to");
      for (const char* reserved : {"true", "false", "none", "True", "False", "None"}) {
        if (node->text == reserved) error("cannot assign to '" + node->text + "'");
      }
      if (with_attributes && skip_op(".")) {
        NodePtr attribute = make(NodeKind::kAttribute, std::move(node));
        attribute->text = expect_identifier("a name behind '.'");
        return attribute;
      }
      return node;
    };
    NodePtr first = one();
    if (!is_op(",")) return first;
    NodePtr node = make(NodeKind::kTuple, std::move(first));
    while (skip_op(",")) {
      if (is_op("=") || is_op(")") || is_name("in")) break;
      add(*node, one());
    }
    return node;
  }

  NodePtr for_statement() {
    NodePtr node = make(NodeKind::kFor);
    add(*node, target(false));
    expect_name("in");
    add(*node, tuple(false));
    NodePtr condition;
    if (skip_name("if")) condition = expression();
    add(*node, std::move(condition));
    if (is_name("recursive")) error("'recursive' loops are not supported");
    expect_block_end();
    ++loops_;
    add(*node, body({"else", "endfor"}));
    --loops_;
    next();
    NodePtr other;
    if (skip_name("else")) {
      expect_block_end();
      other = body({"endfor"});
      next();
    }
    add(*node, std::move(other));
    expect_name("endfor");
    expect_block_end();
    return node;
  }

  NodePtr filter_chain() {
    NodePtr node = filter(nullptr);
    while (is_op("|")) node = filter(std::move(node));
    return node;
  }

  NodePtr set_statement() {
    NodePtr where = target(true);
    if (skip_op("=")) {
      NodePtr node = make(NodeKind::kSet, std::move(where), tuple(true));
      expect_block_end();
      return node;
    }
    NodePtr node = make(NodeKind::kSetBlock, std::move(where));
    NodePtr chain;
    if (is_op("|")) chain = filter_chain();
    add(*node, std::move(chain));
    expect_block_end();
    add(*node, body({"endset"}));
    end("endset");
    return node;
  }

  void parameters(Node& macro) {
    expect_op("(");
    for (bool first = true; !is_op(")"); first = false) {
      if (!first) expect_op(",");
      if (is_op(")")) break;
      macro.names.push_back(expect_identifier("the name of a parameter"));
      if (skip_op("=")) {
        add(macro, expression());
      } else if (!macro.children.empty()) {
        error("parameter '" + macro.names.back() + "' needs a default, as the one before it has");
      }
    }
    expect_op(")");
  }

  void macro_body(Node& macro, std::string_view last) {
    expect_block_end();
    macros_.emplace_back();
    const int loops = std::exchange(loops_, 0);
    add(macro, body({last}));
    loops_ = loops;
    macro.uses_varargs = macros_.back().varargs;
    macro.uses_kwargs = macros_.back().kwargs;
    macros_.pop_back();
    end(last);
  }

  NodePtr macro_statement() {
    NodePtr node = make(NodeKind::kMacro);
    node->text = expect_identifier("the name of the macro");
    parameters(*node);
    macro_body(*node, "endmacro");
    return node;
  }

  NodePtr call_statement() {
    NodePtr macro = make(NodeKind::kMacro);
    macro->text = "caller";
    if (is_op("(")) parameters(*macro);
    NodePtr called = expression();
    if (called->kind != NodeKind::kCall) error("expected a call behind 'call'");
    macro_body(*macro, "endcall");
    return make(NodeKind::kCallBlock, std::move(called), std::move(macro));
  }

  NodePtr with_statement() {
    NodePtr node = make(NodeKind::kWith);
    while (now().kind != TokenKind::kBlockEnd) {
      if (!node->children.empty()) expect_op(",");
      add(*node, target(false));
      expect_op("=");
      add(*node, expression());
    }
    expect_block_end();
    add(*node, body({"endwith"}));
    end("endwith");
    return node;
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  std::size_t nodes_ = 0;
  int nesting_ = 0;
  int loops_ = 0;
  int guarded_ =
      0;  // inside an if: unknown filters and tests fail only when they are reached, so that they can be guarded
  std::vector<MacroUse> macros_;
};

}  // namespace

NodePtr parse_template(std::string_view source) { return Parser(source).run(); }

}  // namespace fovea::jinja
