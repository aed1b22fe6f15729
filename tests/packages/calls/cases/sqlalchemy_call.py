# requires: sqlalchemy
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column


class Base(DeclarativeBase):
    pass


class Item(Base):
    __tablename__ = "items"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


def run(value):
    engine = sa.create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([Item(name="a"), Item(name="b")])
        session.commit()
        return [each.name for each in session.scalars(sa.select(Item).order_by(Item.name.desc()))]
