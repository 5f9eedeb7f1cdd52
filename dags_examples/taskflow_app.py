"""The orchestrators of the DAG ``taskflow``. Start a worker with ``taskhub worker --app taskflow_app:app``."""

from dataclasses import dataclass

from airflow_provider_taskhub.app import App, OrchestrationContext

app = App("taskflow")


@dataclass(frozen=True)
class Month:
    """The input of the orchestrator ``month_sales``."""

    year: int
    month: int
    shops: tuple[str, ...] = ("north", "south")


@dataclass(frozen=True)
class Shop:
    """The input of the activity ``shop_sales``."""

    name: str
    year: int
    month: int


@app.activity
def shop_sales(shop: Shop) -> int:
    return shop.year % 100 + shop.month * len(shop.name)


@app.orchestrator
async def month_sales(ctx: OrchestrationContext, month: Month) -> dict[str, int]:
    """Add the sales of all shops in one month."""
    shops = [Shop(name, month.year, month.month) for name in month.shops]
    sales = await ctx.when_all([ctx.call_activity(shop_sales, shop) for shop in shops])
    return {"month": month.month, "sales": sum(sales)}


@app.orchestrator
async def best_month(ctx: OrchestrationContext, months: list[dict[str, int]]) -> str:
    """Name the month with the highest sales."""
    best = max(months, key=lambda one: one["sales"])
    return f"month {best['month']} had the highest sales: {best['sales']}"
